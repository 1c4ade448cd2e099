// Renews what is live, and asks before what cannot be undone. Without it the page works: load it anew.
"use strict";

const RETRY_MS = 5000;
const live = document.querySelector("#live[data-live]");
const pulse = document.querySelector("#pulse");

// Which element has the focus, or what is scrolled and open, by its place among those of its kind.
function kept(selector) {
  return Array.from(live.querySelectorAll(selector));
}

function swap(html) {
  const inside = live.contains(document.activeElement);
  const able = "a, button, summary, [tabindex]";
  const at = inside ? kept(able).indexOf(document.activeElement) : -1;
  const scrolled = kept(".wide").map((each) => each.scrollLeft);
  const open = kept("details").map((each) => each.open);
  live.innerHTML = html;
  kept(".wide").forEach((each, place) => { each.scrollLeft = scrolled[place] || 0; });
  kept("details").forEach((each, place) => { each.open = open[place] || false; });
  if (at >= 0 && kept(able)[at]) kept(able)[at].focus({ preventScroll: true });
}

function isHeld() {
  const chosen = document.getSelection();
  return chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode);
}

let last = null;

function listen() {
  const source = new EventSource(live.dataset.live);
  source.addEventListener("page", (event) => {
    pulse.textContent = "live";
    if (event.data === last || isHeld()) return;
    last = event.data;
    swap(event.data);
  });
  source.addEventListener("trouble", (event) => { pulse.textContent = "not live: " + event.data; });
  source.addEventListener("error", () => {
    // The server ends each stream after a while, and the browser asks anew by itself; not after an error.
    if (source.readyState !== EventSource.CLOSED) return;
    pulse.textContent = "not live";
    window.setTimeout(start, RETRY_MS);
  });
  return source;
}

let source = null;

function start() {
  if (source) source.close();
  source = document.hidden ? null : listen();
}

if (live && window.EventSource) {
  start();
  document.addEventListener("visibilitychange", start);
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.ask;
  if (question && !window.confirm(question)) event.preventDefault();
});
