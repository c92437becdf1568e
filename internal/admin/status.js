// Keeps the status page alive: its HTML comes from the server, which escapes it; what is live is written as text here.
"use strict";

const shownAtMost = 200;
const {view, name, scope} = document.body.dataset;
const list = document.getElementById("changes");
const note = document.getElementById("changes-note");
const filter = document.getElementById("filter");
const pause = document.getElementById("pause");
let kept = [];      // the newest changes, the newest last
let missed = 0;     // that were too many to show
let paused = false;

// morph makes one element like another and leaves alone what is the same already, so that focus and selection stay.
function morph(old, fresh) {
  for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const keyed = new Map();
  for (const child of old.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = child.dataset?.key;
    const same = key ? keyed.get(key) : at && !at.dataset?.key && at.nodeName === child.nodeName ? at : null;
    if (!same) {
      old.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    if (same.nodeType === Node.ELEMENT_NODE) morph(same, child);
    else if (same.data !== child.data) same.data = child.data;
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function objectOf(c) {
  return (c.namespace ? c.namespace + "/" : "") + (c.name || "*");
}

const bookkeeping = /^\/metadata\/(resourceVersion|generation|managedFields)(\/|$)/; // what every write changes

// pathOf writes a JSON Pointer (RFC 6901) as tap writes paths.
function pathOf(pointer) {
  return pointer.slice(1).split("/").map(part => part.replaceAll("~1", "/").replaceAll("~0", "~")).reduce(
    (path, name) => /^\[.*\]$/.test(name) ? path + name.replace(/([[,])\w+=/g, "$1") : !name || /^\d+$|[./[\] ]/.test(name) ? path + "[" + name + "]" : path ? path + "." + name : name, "");
}

function pathsOf(c) {
  return (c.changed || []).filter(pointer => !bookkeeping.test(pointer)).map(pathOf);
}

function textOf(c) {
  return [c.type, c.resource + (c.group ? "." + c.group : ""), objectOf(c), c.class, c.actor?.manager, ...pathsOf(c)].filter(Boolean).join(" ");
}

function wanted(c) {
  if (scope && scope !== c.resource + (c.group ? "." + c.group : "")) return false;
  const text = textOf(c).toLowerCase();
  return filter.value.toLowerCase().split(/\s+/).filter(Boolean).every(
    word => word.length > 1 && word[0] === "-" ? !text.includes(word.slice(1)) : text.includes(word));
}

function span(className, text) {
  const s = document.createElement("span");
  s.className = className;
  s.textContent = text;
  return s;
}

function row(c) {
  const li = document.createElement("li");
  const object = document.createElement("b");
  object.textContent = objectOf(c);
  const about = [c.class, c.actor && "by " + c.actor.manager, c.gap?.reason, pathsOf(c).join(" ")].filter(Boolean).join(" · ");
  li.append(span("dim", c.observedAt.slice(11, 19)), " ", span(c.type.split(".")[0], c.type), " ",
    c.resource + (c.group ? "." + c.group : ""), " ", object, " ", span("dim", about));
  return li;
}

function say() {
  note.textContent = (paused ? "Paused. " : "") + (missed ? missed + " changes came too fast to be shown here." : "");
}

function show() {
  list.replaceChildren(...kept.filter(wanted).reverse().map(row));
  say();
}

function add(batch) {
  missed += batch.missed;
  kept = kept.concat(batch.changes).slice(-shownAtMost);
  if (paused) return;
  for (const c of batch.changes.filter(wanted)) list.prepend(row(c));
  while (list.children.length > shownAtMost) list.lastChild.remove();
  say();
}

// showState shows the state in the tab of the browser.
function showState(title, image) {
  document.title = title;
  document.getElementById("icon").setAttribute("href", image);
}

const query = new URLSearchParams({view, name});
const events = new EventSource("events?" + query);
events.addEventListener("status", e => {
  const fresh = new DOMParser().parseFromString('<div id="status">' + e.data + "</div>", "text/html").getElementById("status");
  morph(document.getElementById("status"), fresh);
  const state = document.getElementById("state");
  showState(state.dataset.title, state.dataset.icon);
});
events.addEventListener("error", () => {
  // What stands here is past: the headline must not go on saying that all is well. The next status takes this back.
  const verdict = document.querySelector("h1.verdict");
  if (verdict) {
    verdict.className = "verdict bad";
    verdict.textContent = "No answer";
  }
  document.getElementById("state").textContent = "The exporter does not answer";
  showState("✗ No answer · kubecdc", document.getElementById("icon").dataset.lost);
  document.getElementById("link").textContent = "the exporter does not answer; trying again";
});
if (list) {
  events.addEventListener("changes", e => add(JSON.parse(e.data)));
  events.addEventListener("open", () => { kept = []; missed = 0; list.replaceChildren(); say(); });
  filter.addEventListener("input", show);
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", paused);
    show();
  });
}
