// The engine's steps as they come, for whoever listens; only while the page can be seen. It connects again by itself.

import { call, events } from "./api.js";

const KEPT = 200;
const RETRY_MS = 2000;

/** Dispatches "change" when something is new and "connection" when `connected` changes. */
class Feed extends EventTarget {
  engine = null; // what the engine is
  state = null; // how it stands
  steps = []; // the last ones, oldest first
  connected = false;
  problem = "";
  #lag = Infinity; // this clock minus the server's, in seconds, with the least delay seen
  #open = null;

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#open?.abort() : this.#run()));
    addEventListener("pagehide", () => this.#open?.abort());
    if (!document.hidden) this.#run();
  }

  /** Connect at once, if it is not connected. */
  restart() {
    this.#open?.abort();
    this.#run();
  }

  /** Now, in the server's time. */
  now() {
    return Date.now() / 1000 - (this.#lag === Infinity ? 0 : this.#lag);
  }

  async #run() {
    const mine = new AbortController();
    this.#open = mine;
    while (!mine.signal.aborted) {
      try {
        const response = await call("engine/steps", { accept: "text/event-stream", signal: mine.signal });
        for await (const event of events(response)) this.#take(event);
        this.problem = "The server has ended.";
      } catch (error) {
        if (error.name === "AbortError") return;
        this.problem = error.status === 401 ? "This server needs a key." : error.message;
      }
      this.#setConnected(false);
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }

  #take({ engine, state, steps }) {
    if (engine) {
      this.engine = engine;
      this.steps = [];
    }
    this.state = state;
    this.steps = [...this.steps, ...steps].slice(-KEPT);
    const newest = steps.at(-1);
    if (newest && !engine) this.#lag = Math.min(this.#lag, Date.now() / 1000 - newest.time);
    this.#setConnected(true);
    this.dispatchEvent(new Event("change"));
  }

  #setConnected(connected) {
    if (this.connected === connected && connected) return;
    this.connected = connected;
    this.dispatchEvent(new Event("connection"));
  }
}

export const feed = new Feed();
