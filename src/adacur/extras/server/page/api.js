// The server's API: requests with the key, answers as objects, every failure as one sentence.
import { readEvents } from "./events.js";

export class ApiError extends Error {
  constructor(message, { status = 0, code = "" } = {}) {
    super(message);
    Object.assign(this, { status, code });
  }
}

let key = "";
try {
  key = sessionStorage.getItem("adacur-key") ?? "";
} catch {
  // Storage may be forbidden; the key then lasts as long as the page.
}

export function useKey(typed) {
  key = typed;
  try {
    sessionStorage.setItem("adacur-key", typed);
  } catch {
    // As above.
  }
}

/** {state: "ready", data} or, where the server is still at it, {state: "computing", data so far, seconds}. */
export async function get(path, { signal } = {}) {
  const response = await ask(path, { signal });
  const data = await response.json();
  if (response.status === 202) return { state: "computing", data, seconds: Number(response.headers.get("retry-after")) || 2 };
  return { state: "ready", data };
}

/** Yields the events of a search, or of a find; throws an ApiError where the search fails. */
export async function* search(request, { signal, verb = "search" } = {}) {
  const response = await ask(`v1/${verb}`, {
    signal,
    method: "POST",
    headers: { "content-type": "application/json", accept: "text/event-stream" },
    body: JSON.stringify({ ...request, stream: true }),
  });
  try {
    for await (const { event, data } of readEvents(response.body)) {
      if (event === "error") throw new ApiError(data.error.message, { code: data.error.code });
      yield { event, data };
      if (event === "done") return;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError("The connection broke in the middle of the search.");
  }
  throw new ApiError("The server ended the answer before the search was done.");
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      ...options,
      headers: { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  let answer = {};
  try {
    answer = (await response.json()).error ?? {};
  } catch {
    // A proxy in between may answer in HTML.
  }
  const wait = Number(response.headers.get("retry-after"));
  const again = response.status === 429 && wait ? ` Try again in ${wait} s.` : "";
  const message = answer.message ?? `The server answered ${response.status} ${response.statusText}.`;
  throw new ApiError(message + again, { status: response.status, code: answer.code });
}
