"use strict";
// The page works without this script; it adds the search and "try it". The key stays in this page's memory.
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

const search = document.querySelector("#search");
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const section of all("section[id]")) {
    const text = section.dataset.words;
    const hidden = !words.every((word) => text.includes(word));
    section.hidden = hidden;
    document.querySelector(`nav a[href="#${section.id}"]`).hidden = hidden;
  }
  for (const group of all("[data-group]")) {
    group.hidden = all("section, a", group).every((each) => each.hidden);
  }
});

function target(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  for (const field of all("input[data-in]", form)) {
    if (field.dataset.in === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(field.value));
    else if (field.dataset.in === "query" && field.value !== "") query.append(field.name, field.value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

function headers(form) {
  const found = {};
  const key = document.querySelector("#key");
  if (key && key.value.trim()) found.Authorization = `Bearer ${key.value.trim()}`;
  for (const field of all("input[data-in=header]", form)) if (field.value !== "") found[field.name] = field.value;
  return found;
}

async function send(form, signal, show) {
  const request = { method: form.dataset.method, headers: headers(form), signal };
  const body = form.querySelector("textarea");
  if (body && body.value.trim()) {
    request.body = body.value;
    request.headers["Content-Type"] = body.dataset.media;
  }
  const answer = await fetch(target(form), request);
  show(`${answer.status} ${answer.statusText}\n\n`);
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const piece = decoder.decode(value, { stream: true });
    text += piece;
    show(piece);
    if (text.length > 1000000) throw new Error("the rest of the answer is not shown");
  }
  if ((answer.headers.get("Content-Type") || "").includes("json")) {
    show(null, `${answer.status} ${answer.statusText}\n\n${JSON.stringify(JSON.parse(text), null, 2)}`);
  }
}

for (const form of all(".try")) {
  const [start, stop] = all("button", form);
  const output = form.querySelector("pre");
  const show = (more, instead) => { output.hidden = false; output.textContent = instead ?? output.textContent + more; };
  let running = null;
  start.addEventListener("click", async () => {
    running = new AbortController();
    output.textContent = "";
    start.hidden = true;
    stop.hidden = false;
    try {
      await send(form, running.signal, show);
    } catch (error) {
      show(`\n${error.name === "AbortError" ? "stopped" : error.message}`);
    }
    start.hidden = false;
    stop.hidden = true;
  });
  stop.addEventListener("click", () => running.abort());
}
