// Starts the page: which view is shown, the theme, the key, and the connection to the engine.

import { hasKey, useKey } from "./api.js";
import { loadModels, startChat } from "./chat.js";
import { byId } from "./dom.js";
import { redraw, startEngineView } from "./engine.js";
import { feed } from "./feed.js";

const THEMES = { "": "◐ Auto", light: "○ Light", dark: "● Dark" };

function showView() {
  const name = location.hash === "#engine" ? "engine" : "chat";
  for (const view of document.querySelectorAll(".view")) view.hidden = view.id !== `${name}-view`;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = name === "engine" ? "Engine · Fathom" : "Fathom";
  scrollTo(0, 0);
  if (name === "chat" && matchMedia("(pointer: fine)").matches) byId("input").focus();
  redraw();
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("fathom.theme", theme);
  showTheme();
  redraw();
}

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "";
  byId("theme").textContent = THEMES[theme];
  byId("theme").setAttribute("aria-label", `Colours: ${theme || "auto"}`);
}

function startTheme() {
  byId("theme").addEventListener("click", () => {
    const order = Object.keys(THEMES);
    setTheme(order[(order.indexOf(document.documentElement.dataset.theme ?? "") + 1) % order.length]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  showTheme();
}

function startKey() {
  const dialog = byId("key-dialog");
  let refused = false; // the dialog comes by itself until it is turned away; then there is the button
  const turnAway = () => {
    refused = true;
    dialog.close();
  };
  addEventListener("key-needed", () => {
    byId("key-button").hidden = false;
    byId("key-title").textContent = hasKey() ? "That key was not accepted" : "This server needs a key";
    if (!dialog.open && !refused) dialog.showModal();
  });
  byId("key-button").hidden = !hasKey();
  byId("key-button").addEventListener("click", () => dialog.showModal());
  byId("key-cancel").addEventListener("click", turnAway);
  dialog.addEventListener("cancel", turnAway);
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value.trim());
    byId("key").value = "";
    refused = false;
    dialog.close();
    feed.restart();
    loadModels().catch(() => {}); // the feed says what is wrong
  });
}

function showConnection() {
  byId("connection").textContent = feed.connected ? feed.engine.model : feed.problem;
  byId("connection").classList.toggle("lost", !feed.connected);
}

addEventListener("hashchange", showView);
showView();
startTheme();
startKey();
startChat();
startEngineView();
feed.addEventListener("connection", showConnection);
feed.start();
loadModels().catch(() => {}); // the feed says what is wrong
