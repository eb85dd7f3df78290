// Runs before the first paint, so that a chosen theme does not flash in.
try {
  const chosen = localStorage.getItem("adacur-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; the system's theme then holds.
}
