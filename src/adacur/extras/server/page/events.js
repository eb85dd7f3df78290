// Server-sent events read from the body of a response: EventSource cannot POST.

/** Yields {event, data} for each event of a stream of bytes; `data` is parsed JSON. */
export async function* readEvents(stream) {
  let rest = "";
  let event = "message";
  let data = [];
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += value ?? "";
      // A \r at the end may be the first half of \r\n: it waits for what follows.
      const lines = rest.split(done ? /\r\n|\n|\r/ : /\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { event, data: JSON.parse(data.join("\n")) };
          event = "message";
          data = [];
        } else if (!line.startsWith(":")) {
          const [, field, content] = /^([^:]*):? ?(.*)$/.exec(line);
          if (field === "event") event = content;
          if (field === "data") data.push(content);
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
