// Calls to the server: the key goes with each, errors come out as ApiError, event streams as an async generator.

const KEY = "fathom.key";

export class ApiError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Ask the server. Paths are relative, so that the page works behind a proxy that adds a prefix. */
export async function call(path, { body, accept, signal } = {}) {
  const headers = {};
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  if (accept) headers.Accept = accept;
  const options = { headers, signal };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  if (response.status === 401) window.dispatchEvent(new Event("key-needed"));
  const told = await response.json().catch(() => null);
  throw new ApiError(response.status, told?.error?.message ?? `Status ${response.status}.`, told?.error?.code);
}

/** The events of a stream, each as the object in its data; an error event is thrown. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The connection broke.");
    }
    if (piece.done) return;
    const whole = (rest + piece.value).split("\n\n");
    rest = whole.pop();
    for (const text of whole) {
      const data = text.slice(text.indexOf("data: ") + 6);
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ApiError(0, parsed.error.message, parsed.error.code);
      yield parsed;
    }
  }
}
