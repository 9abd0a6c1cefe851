// One answer on the page: reasoning folded, text or coloured tokens, tool calls, what went wrong, and its numbers.

import { announce, button, make, milliseconds, plural } from "./dom.js";
import { TextView } from "./text.js";
import { TokenView } from "./tokens.js";

export class AnswerView {
  constructor() {
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.text = new TextView();
    this.tokens = null;
    this.times = { asked: performance.now(), first: null, last: null };
    this.usage = null;
    this.finish = null;
    this.problem = null;
    this.body = make("div", "body", this.text.root);
    this.foot = make("footer", "numbers");
    this.root = make("article", "message assistant", make("h2", "role", "Model"), this.body, this.foot);
    this.root.setAttribute("aria-busy", "true");
    this.waiting = make("p", "waiting", "…");
    this.body.append(this.waiting);
    this.frame = 0;
  }

  /** Take in one chunk of the stream. */
  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    const { content, reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls || choice.logprobs?.content.length) {
      this.times.last = performance.now();
      this.times.first ??= this.times.last;
    }
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    for (const delta of calls ?? []) this.#addCall(delta);
    if (choice.logprobs) this.#addTokens(choice.logprobs.content);
    this.finish = choice.finish_reason ?? this.finish;
    this.#soon();
  }

  /** The stream is over; problem: what went wrong, if something did. */
  end(finish, problem = null) {
    this.finish = finish ?? this.finish;
    this.problem = problem;
    cancelAnimationFrame(this.frame);
    this.#render();
    this.root.setAttribute("aria-busy", "false");
    this.root.classList.toggle("failed", problem !== null);
  }

  /** The message that goes back to the server with the conversation. */
  message() {
    const message = { role: "assistant", content: this.content };
    if (this.calls.length) {
      message.tool_calls = this.calls.map(({ id, name, args }) => ({ id, type: "function", function: { name, arguments: args } }));
      message.content ||= null;
    }
    return message;
  }

  /** Show tokens or text, where there are both. */
  showTokens(wanted) {
    if (!this.tokens) return;
    this.tokens.root.hidden = !wanted;
    this.text.root.hidden = wanted;
  }

  /** Buttons below the answer, left of its numbers. */
  offer(...buttons) {
    this.actions?.remove();
    const copy = button("Copy", "quiet small", async () => {
      await navigator.clipboard.writeText(this.content);
      announce("Answer copied");
    });
    this.actions = make("span", "actions", copy, ...buttons);
    this.foot.append(this.actions);
  }

  #addTokens(entries) {
    if (!this.tokens) {
      this.tokens = new TokenView();
      this.text.root.after(this.tokens.root);
      this.showTokens(true);
    }
    this.tokens.add(entries);
  }

  #addCall(delta) {
    const call = (this.calls[delta.index] ??= { id: "", name: "", args: "" });
    call.id = delta.id ?? call.id;
    call.name += delta.function.name ?? "";
    call.args += delta.function.arguments ?? "";
  }

  /** Draw once a frame, however many chunks come in between. */
  #soon() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.#render());
  }

  #render() {
    this.waiting.hidden = this.times.first !== null || this.finish !== null || this.problem !== null;
    this.text.show(this.content);
    if (this.reasoning) this.#renderReasoning();
    for (const call of this.calls) this.#renderCall(call);
    if (this.problem) {
      this.alert ??= this.body.appendChild(make("p", "problem"));
      this.alert.setAttribute("role", "alert");
      this.alert.textContent = this.problem;
    }
    this.numbers ??= this.foot.insertBefore(make("span"), this.foot.firstChild);
    this.numbers.textContent = this.#numbers().join(" · ");
  }

  #renderReasoning() {
    if (!this.thought) {
      this.thought = new TextView();
      this.fold = make("details", "reasoning", make("summary", "", "Reasoning"), this.thought.root);
      this.body.prepend(this.fold);
    }
    this.thought.show(this.reasoning);
  }

  #renderCall(call) {
    if (!call.element) {
      call.head = make("span");
      call.code = make("code");
      call.element = make("div", "code-block call", make("div", "code-head", make("span", "", "Calls"), call.head), make("pre", "", call.code));
      this.body.append(call.element);
    }
    call.head.textContent = call.name;
    call.code.textContent = pretty(call.args);
  }

  #numbers() {
    const { asked, first, last } = this.times;
    const parts = [];
    const made = this.usage?.completion_tokens;
    if (made) parts.push(plural(made, "token"));
    if (made > 1 && last > first) parts.push(`${((1000 * (made - 1)) / (last - first)).toFixed(1)} tokens/s`);
    if (first !== null) parts.push(`first after ${milliseconds(first - asked)}`);
    if (this.usage) {
      const cached = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
      parts.push(`prompt ${this.usage.prompt_tokens}${cached ? `, ${cached} of them cached` : ""}`);
    }
    const endings = { length: "cut at max tokens", stopped: "stopped", abort: "ended by the server" };
    if (endings[this.finish]) parts.push(endings[this.finish]);
    return parts;
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
