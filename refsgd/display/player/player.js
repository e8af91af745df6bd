// The step player.  Position k is the moment after k events.  Everything shown depends only on k, so stepping
// forwards and backwards shows the same.  A column is a list of [k, value] at which the value changes.
(function () {
"use strict";

const run = JSON.parse(document.getElementById("run").textContent);
const last = run.events.length;
const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
let position = 0, timer = null, zoom = 1;

// -- small tools ---------------------------------------------------------------------------------------------

/** Index of the last entry of a sorted list whose key is <= k, or -1. */
function before(list, k, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((key ? key(list[middle]) : list[middle]) <= k) low = middle + 1; else high = middle;
  }
  return low - 1;
}

const first = (pair) => pair[0];
const column = (list, k) => { const i = before(list, k, first); return i < 0 ? null : list[i]; };

function clock(t) {
  if (run.unit === "steps") return "step " + Math.round(t);
  const span = run.end || 1;
  return span < 2 ? (t * 1e3).toFixed(span < 0.02 ? 3 : span < 0.2 ? 2 : 1) + " ms" : t.toFixed(span < 20 ? 3 : 2) + " s";
}

/** A duration, where clock() has a moment. */
const lasting = (t) => (run.unit === "steps" ? Math.round(t) + " step" + (Math.round(t) === 1 ? "" : "s") : clock(t));

const eventAt = (k) => `event ${run.first + k} of ${run.total}`;
const timeAt = (k) => (k > 0 ? run.times[k - 1] : run.start);

// -- names and colours ---------------------------------------------------------------------------------------

let workers = 0;
const nodeStyle = run.nodes.map((name, i) => (run.workers[i] ? "c" + (workers++ % 8) : "cs"));
const short = (name) => name.replace(/^([a-z])[a-z]*(\d+)$/i, "$1$2");
const several = run.nodes.map((_, i) => run.programs.filter((p) => p.node === i).length > 1);
const labels = run.programs.map((p) => run.nodes[p.node] + (several[p.node] ? " " + (p.name || p.index) : ""));
const badges = run.programs.map((p) => short(run.nodes[p.node]) + (p.index ? "·" + p.index : ""));
const badge = (p, more) => `<span class="mark ${nodeStyle[run.programs[p].node]}${more || ""}" title="${text(labels[p])}">${text(badges[p])}</span>`;
/** The badges of several programs; four or more consecutive ones share a badge such as w0–w5. */
function badgeRow(list, more) {
  const out = [];
  for (let i = 0; i < list.length; i++) {
    let j = i;
    while (j + 1 < list.length && !run.programs[list[j + 1]].index && !run.programs[list[i]].index
      && run.programs[list[j + 1]].node === run.programs[list[j]].node + 1 && nodeStyle[run.programs[list[j + 1]].node] !== "cs") j++;
    if (j - i < 3) { out.push(badge(list[i], more)); continue; }
    const names = labels[list[i]] + " to " + labels[list[j]];
    out.push(`<span class="mark many${more || ""}" title="${text(names)}">${text(badges[list[i]])}–${text(badges[list[j]])}</span>`);
    i = j;
  }
  return out.join("");
}
const causeStyle = (cause) => (cause < 0 ? "free" : run.causes[cause] === "not answered" ? "open" : run.causes[cause]);
const blocksOf = run.programs.map((_, p) => run.blocks.filter((b) => b[0] === p));
const kindStyle = (work, name) => (work === "gradient" ? (name.startsWith("forward") ? "forward" : "gradient") : work === "codec" ? "codec" : "work");

// -- the diagram ---------------------------------------------------------------------------------------------

const scroll = byId("scroll"), picture = {};
const tall = run.programs.map((p) => (p.index ? 20 : 30));
const top = tall.map((_, i) => 6 + tall.slice(0, i).reduce((a, b) => a + b, 0));
const middle = (p) => top[p] + tall[p] / 2;
const height = 6 + tall.reduce((a, b) => a + b, 0) + 22;
const nodeOf = (p) => run.nodes[run.programs[p].node];

function tickStep(span, count) {
  const raw = span / Math.max(1, count), power = Math.pow(10, Math.floor(Math.log10(raw || 1)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
  return run.unit === "steps" ? Math.max(1, step) : step;
}

function drawDiagram() {
  const room = Math.max(240, scroll.clientWidth - 2);
  const width = Math.round(Math.max(room, last * 9) * zoom), span = Math.max(run.end - run.start, 1e-9);
  const x = (t) => 4 + (width - 14) * (Math.min(Math.max(t, run.start), run.end) - run.start) / span;
  const svg = canvas({ width, height, "aria-label": `Space-time diagram of ${run.nodes.length} nodes and ${last} events` });
  const step = tickStep(span, width / 90);
  for (let t = Math.ceil(run.start / step) * step; t <= run.end + 1e-12; t += step) {
    svg.append(shape("line", { class: "grid", x1: x(t), x2: x(t), y1: 2, y2: height - 18 }));
    svg.append(shape("text", { x: Math.min(x(t), width - 34), y: height - 5, "text-anchor": x(t) < 30 ? "start" : "middle" }, clock(t)));
  }
  const boxes = new Map(), bar = (p, a, b, style, k, thin) => {
    const h = tall[p] - (thin ? 18 : 10), box = shape("rect", { x: x(a), y: middle(p) - h / 2, width: Math.max(1, x(b) - x(a)), height: h, class: style, rx: 1.5 });
    if (k > 0) { box.dataset.k = k; boxes.set(k, box); }
    svg.append(box);
  };
  run.programs.forEach((_, p) => svg.append(shape("line", { class: "grid", x1: 0, x2: width, y1: middle(p), y2: middle(p) })));
  for (const [p, a, b, cause, k] of run.waiting) bar(p, a, b, causeStyle(cause), k, cause < 0);
  for (const [p, a, b, work, k, name] of run.computing) {
    bar(p, a, b, kindStyle(work, name), k);
    const short = [name, name.replace(/\D/g, "")].find((s) => s && s.length * 5.6 + 4 < x(b) - x(a));
    if (name === work || !short) continue;  // only pieces of a gradient are named
    svg.append(shape("text", { class: "piece", x: (x(a) + x(b)) / 2, y: middle(p) + 3, "text-anchor": "middle" }, short));
  }
  const lines = run.messages.map(([from, to, name, sentK, sent, arrival, gotK, got]) => {
    const arrived = arrival !== null && arrival <= run.end ? arrival : got !== null ? got : run.end;
    const y1 = middle(from), y2 = middle(to), way = `M${x(sent)},${y1}L${x(arrived)},${y2}`;
    const line = shape("path", { class: "message", d: way, "marker-end": "url(#tip)" }), hit = shape("path", { class: "hit", d: way });
    hit.dataset.k = gotK > 0 ? gotK : Math.max(1, sentK);
    hit.append(shape("title", {}, `${name}: ${nodeOf(from)} to ${nodeOf(to)}`));
    svg.append(line, hit);
    return { line, way, x1: x(sent), y1, x2: x(arrived), y2 };
  });
  run.events.forEach(([p, kind], i) => {
    if (kind !== "update") return;
    const cx = x(run.times[i]), y = middle(p) + tall[p] / 2 - 1, mark = shape("path", { class: "updated", d: `M${cx - 4},${y}L${cx + 4},${y}L${cx},${y - 7}z` });
    mark.dataset.k = i + 1;
    svg.append(mark);
  });
  const future = shape("rect", { class: "future", y: 0, height: height - 18, x: 0, width });
  const cursor = shape("line", { class: "cursor", y1: 0, y2: height - 16 });
  const spot = shape("circle", { r: 4.5, class: "cursor", fill: "var(--paper)" });
  const above = shape("g", { "pointer-events": "none" });
  svg.append(future, above, cursor, spot);
  svg.addEventListener("click", (e) => {
    const picked = e.target.closest("[data-k]");
    if (picked) return go(Number(picked.dataset.k));
    const at = svg.getBoundingClientRect(), t = run.start + (e.clientX - at.left - 4) / (width - 14) * span;
    go(before(run.times, t) + 1);
  });
  scroll.replaceChildren(svg);
  Object.assign(picture, { x, width, future, cursor, spot, lines, boxes, above, lit: null });
}

function moveCursor(k, flying) {
  const at = picture.x(timeAt(k));
  picture.future.setAttribute("x", at);
  picture.future.setAttribute("width", Math.max(0, picture.width - at));
  for (const end of ["x1", "x2"]) picture.cursor.setAttribute(end, at);
  picture.spot.setAttribute("cx", at);
  picture.spot.setAttribute("cy", k ? middle(run.events[k - 1][0]) : -20);
  picture.above.replaceChildren(...flying.flatMap((i) => {
    const { way, x1, y1, x2, y2 } = picture.lines[i], part = x2 > x1 ? Math.min(1, (at - x1) / (x2 - x1)) : 1;
    return [shape("path", { class: "message flying", d: way, "marker-end": "url(#tip)" }),
      shape("circle", { class: "flying", r: 4, cx: x1 + part * (x2 - x1), cy: y1 + part * (y2 - y1) })];
  }));
  if (picture.lit) picture.lit.classList.remove("now");
  picture.lit = picture.boxes.get(k) || null;
  if (picture.lit) picture.lit.classList.add("now");
  const edge = Math.min(60, scroll.clientWidth / 4);
  if (at < scroll.scrollLeft + edge || at > scroll.scrollLeft + scroll.clientWidth - edge) scroll.scrollLeft = at - scroll.clientWidth * 0.4;
}

function drawLegend() {
  const used = new Set(run.waiting.map((w) => w[3]));
  const part = (style, name, hint) => `<span class="entry"${hint ? ` title="${text(hint)}"` : ""}><b class="${style}"></b>${name}</span>`;
  const others = [...new Set(run.computing.map((c) => c[3]))].filter((work) => work !== "gradient" && work !== "codec");
  const pieces = run.computing.some((c) => c[5].startsWith("forward")), codec = run.computing.some((c) => c[3] === "codec");
  const parts = [pieces ? part("forward", "computing a forward pass") + part("gradient", "computing a backward pass; numbers: layers or batches") : part("gradient", "computing a gradient"),
    codec ? part("codec", "encoding or decoding") : "", others.length ? part("work", "computing: " + text(others.join(", "))) : ""];
  run.causes.forEach((cause, i) => {
    const why = run.why[cause];
    if (used.has(i)) parts.push(part(causeStyle(i), "waiting: " + cause + (why ? `<span class="word">, ${text(why)}</span>` : ""), why));
  });
  if (used.has(-1)) parts.push(part("free", "no request to serve"));
  parts.push('<span class="entry">▲ parameters are updated</span><span class="entry">arrows: messages, red while under way</span>');
  byId("legend").innerHTML = parts.join("");
  byId("lanes").innerHTML = '<div style="height:6px"></div>' + run.programs.map((_, p) => `<div style="height:${tall[p]}px">${badge(p)} <span>${text(labels[p])}</span></div>`).join("");
}

// -- the source ----------------------------------------------------------------------------------------------

const marked = new Map();  // element of a line -> its markers as HTML

function standing(p, k) {
  return column(run.programs[p].stands, k) || [0, -1, ""];
}

/** Why a program waits: [position, text, file and line that hold it back]; null if it does not wait. */
function reasonOf(p, k) {
  const found = column(run.programs[p].reasons, k);
  return found && found[1] ? found : null;
}

/** The programs that a line holds back; more than two as their number. */
function waitRow(held) {
  if (!held.length) return "";
  const many = `<span class="mark many" title="${text(held.map((p) => labels[p]).join(", "))}">${held.length}</span>`;
  return (held.length > 2 ? many : badgeRow(held)) + `<span class="waits">wait${held.length > 1 ? "" : "s"}</span>`;
}

/** The program that begins to be held back at position k, or null. */
const stopAt = (k) => { const stop = run.stops.find((s) => s[0] === k); return stop ? stop[1] : null; };

function drawMarks(k, now) {
  const wanted = new Map(), stop = stopAt(k);
  let target = null, gate = null;
  const want = (id, kind, p) => {
    if (!wanted.has(id)) wanted.set(id, [[], [], []]);
    wanted.get(id)[kind].push(p);
  };
  run.programs.forEach((_, p) => {
    const frames = run.places[standing(p, k)[1]], reason = reasonOf(p, k);
    if (!frames) return;
    frames.forEach((frame, depth) => {
      const inner = depth === frames.length - 1;
      want(idOf(frame), inner ? 1 : 0, p);
      if (inner && p === now) target = idOf(frame);
    });
    if (reason && reason.length > 2) {
      want(idOf(reason.slice(2)), 2, p);
      if (p === stop) gate = idOf(reason.slice(2));
    }
  });
  for (const id of marked.keys()) {
    if (!wanted.has(id)) {
      const line = byId(id);
      line.classList.remove("lit", "now", "gate", "stop");
      line.removeAttribute("aria-current");
      line.children[1].replaceChildren();
      marked.delete(id);
    }
  }
  for (const [id, [outer, inner, held]] of wanted) {
    const line = byId(id), html = waitRow(held) + badgeRow(outer, " outer") + badgeRow(inner);
    if (!line) continue;
    if (marked.get(id) !== html) {
      line.children[1].innerHTML = html;
      marked.set(id, html);
    }
    line.classList.toggle("lit", outer.length + inner.length > 0);
    line.classList.toggle("now", id === target);
    line.classList.toggle("gate", held.length > 0);
    line.classList.toggle("stop", id === gate);
    if (id === target) line.setAttribute("aria-current", "step"); else line.removeAttribute("aria-current");
  }
  if (target && byId(target)) reveal(byId(target));
  if (gate && byId(gate)) reveal(byId(gate));
}

/** Scroll only the listing, so that a line is in the visible part. */
function reveal(line) {
  const box = byId("listing"), around = box.getBoundingClientRect();
  for (let folded = line.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
  const bottom = around.top + box.clientHeight;
  let from = Math.max(around.top, document.querySelector("header").getBoundingClientRect().bottom), to = Math.min(bottom, innerHeight);
  if (to - from < 90) [from, to] = [around.top, bottom];  // out of sight: shown when the reader scrolls back
  const at = line.getBoundingClientRect();
  const above = Math.max(0, Math.min((to - from) * 0.5, to - from - at.height - 4));  // a wrapped line may be high
  if (at.top < from + 20 || at.bottom > to - 30) box.scrollTop += at.top - from - above;
}

/** End the listing at the bottom of the window, so that stepping does not need the page to scroll. */
function fitListing() {
  const page = document.documentElement.style;
  page.setProperty("--above", Math.round(byId("listing").getBoundingClientRect().top + scrollY) + "px");
  page.setProperty("--header", document.querySelector("header").offsetHeight + "px");
}

// -- where programs stand ------------------------------------------------------------------------------------

function sourceOf(place) {
  const frames = run.places[place];
  if (!frames) return ["", ""];
  const [file, line] = frames[frames.length - 1], element = byId(`f${file}l${line}`);
  return [run.files[file].split("/").pop() + ":" + line, element ? element.lastElementChild.textContent.trim() : ""];
}

const works = { gradient: "a gradient", update: "the update", reduction: "a reduction", codec: "a codec's step", evaluation: "the loss", forward: "the forward pass" };
const computed = (work) => works[work] || work.replace(/^(forward|backward) (\d+)$/, "the $1 pass of layer or batch $2");
/** The next action of a program, in words. */
const next = (says) => says.replace(/^computes: (.*)/, (_, work) => "computes " + computed(work)).replace(/^sends /, "is about to send ")
  .replace(/^marks /, "is about to mark: ");

const cards = run.programs.map((_, p) => {
  const card = document.createElement("div");
  card.dataset.program = p;
  byId("state").append(card);
  return { card, html: null };
});

function drawState(k, now) {
  run.programs.forEach((program, p) => {
    const [, place, says] = standing(p, k), [where] = sourceOf(place);
    const block = blocksOf[p].find((b) => b[1] <= k && k < b[2]);
    const counts = [];
    const gradients = run.gradients[program.node], updates = run.updates[program.node];
    if (gradients && !program.index) counts.push("gradients computed " + column(gradients, k)[1]);
    if (updates && !program.index) counts.push("updates " + column(updates, k)[1]);
    const age = column(agesOf[program.node], k);
    if (age && !program.index) counts.push(`its last gradient missed ${age[1]} update${age[1] === 1 ? "" : "s"}`);
    const locals = [];
    for (const name in program.locals) {
      const pair = column(program.locals[name], k);
      if (pair && pair[1] !== null) locals.push(`<span class="${pair[0] === k && k > 0 && p === now ? "changed" : ""}"><em>${text(name)}</em> ${text(pair[1])}</span>`);
    }
    const fixed = Object.entries(program.fixed).map(([name, value]) => `<span><em>${text(name)}</em> ${text(value)}</span>`);
    const waits = says.startsWith("waits: "), reason = reasonOf(p, k);
    const html = `<p class="head">${badge(p)}<strong>${text(labels[p])}</strong>`
      + `<span class="where">${where ? "in " + text(program.name) + ", " + text(where) : ""}</span><span class="counts">${counts.join(", ")}</span></p>`
      + `<p class="says">${waits ? "<b>waits at</b> " + text(says.slice(7)) : text(next(says))}${reason ? text(reason[1]) : ""}</p>`
      + (block ? `<p class="where">${text(block[3])}</p>` : "")
      + `<div class="locals">${locals.join("")}</div>`
      + (fixed.length ? `<details${opened.has(p) ? " open" : ""}><summary>variables that never change</summary><div class="locals">${fixed.join("")}</div></details>` : "");
    cards[p].card.className = "program" + (p === now ? " now" : "");
    if (cards[p].html !== html) cards[p].card.innerHTML = cards[p].html = html;
  });
}

const opened = new Set();  // programs whose fixed variables are unfolded
byId("state").addEventListener("toggle", (e) => {
  const p = Number(e.target.closest("[data-program]").dataset.program);
  if (e.target.open) opened.add(p); else opened.delete(p);
}, true);

const agesOf = run.nodes.map((_, n) => run.ages.filter((a) => a[2] === n));

// -- messages ------------------------------------------------------------------------------------------------

function underWay(k) {
  const t = timeAt(k), flying = [], inbox = [];
  run.messages.forEach((m, i) => {
    if (m[3] <= k && (m[6] < 0 || m[6] > k)) (m[5] !== null && m[5] <= t ? inbox : flying).push(i);
  });
  return [flying, inbox];
}

function drawMessages(flying, inbox) {
  const item = (i, way) => {
    const m = run.messages[i], body = m[9].replace(/^\w+/, "");
    return `<li>${text(m[2])} ${way(m)} ${m[8] ? `(${m[8]} bytes)` : ""} <span class="body">${text(body)}</span></li>`;
  };
  const way = (m) => `<b>${text(nodeOf(m[0]))} → ${text(nodeOf(m[1]))}</b>` + (m[5] === null || m[5] > run.end ? "" : ", arrives " + clock(m[5]));
  byId("messages").innerHTML = listed("under way", flying.map((i) => item(i, way)))
    + listed("in an inbox, not taken yet", inbox.map((i) => item(i, (m) => `at <b>${text(nodeOf(m[1]))}</b> from ${text(nodeOf(m[0]))}`)));
}

// -- growing figures -----------------------------------------------------------------------------------------

const bars = (rows) => `<table class="chart"><tbody>${rows.map(([name, share, count, style, hint]) =>
  `<tr><th scope="row" title="${text(hint || "")}">${text(name)}</th><td><span class="bar ${style}" style="width:${(100 * share).toFixed(2)}%"></span></td><td class="count">${count}</td></tr>`).join("")}</tbody></table>`;

const oldest = Math.max(0, ...run.ages.map((a) => a[1]), ...Object.keys(run.agesBefore).map(Number));
const width = Math.max(1, Math.ceil((oldest + 1) / 16));  // at most 16 bars
const mostAges = Math.max(1, ...histogram(last));

function histogram(k) {
  const counts = new Array(Math.floor(oldest / width) + 1).fill(0);
  for (const tau in run.agesBefore) counts[Math.floor(Math.max(0, tau) / width)] += run.agesBefore[tau];
  for (let i = before(run.ages, k, first); i >= 0; i--) counts[Math.floor(Math.max(0, run.ages[i][1]) / width)]++;
  return counts;
}

function drawAges(k) {
  const counts = histogram(k), total = counts.reduce((a, b) => a + b, 0);
  if (!run.ages.length && !total) { byId("ages").innerHTML = '<p class="note">these programs mark no updates with their reads</p>'; return; }
  const name = (i) => (width === 1 ? i : `${i * width} to ${i * width + width - 1}`);
  const sum = run.ages.slice(0, before(run.ages, k, first) + 1).reduce((s, a) => s + a[1], 0) + Object.entries(run.agesBefore).reduce((s, [tau, n]) => s + tau * n, 0);
  byId("ages").innerHTML = bars(counts.map((n, i) => [name(i), n / mostAges, n, "gradient"]))
    + `<p class="note">updates that a gradient missed; ${total} gradients, mean ${total ? (sum / total).toFixed(2) : "–"}</p>`;
}

function drawIdle(k) {
  const t = timeAt(k), spent = { computing: run.base.computing };
  const seconds = (t || 0) * workers;
  for (const cause of run.causes) spent[cause] = run.base[cause] || 0;
  for (const [p, a, b, work] of run.computing) if (work === "gradient" && a < t && run.workers[run.programs[p].node]) spent.computing += Math.min(b, t) - a;
  for (const [, a, b, cause] of run.waiting) if (cause >= 0 && a < t) spent[run.causes[cause]] += Math.min(b, t) - a;
  const known = Object.values(spent).reduce((a, b) => a + b, 0);
  const share = (s) => (seconds ? Math.min(1, s / seconds) : 0);
  const rows = [["computing", share(spent.computing), (100 * share(spent.computing)).toFixed(1) + " %", "gradient"]];
  run.causes.forEach((cause, i) => {
    if (spent[cause] > 0 || run.waiting.some((w) => w[3] === i)) rows.push([cause, share(spent[cause]), (100 * share(spent[cause])).toFixed(1) + " %", causeStyle(i), run.why[cause]]);
  });
  if (seconds - known > 1e-6 * seconds) rows.push(["other", share(seconds - known), (100 * share(seconds - known)).toFixed(1) + " %", "free", "neither computing a gradient nor waiting for a message, or done"]);
  byId("idle").innerHTML = bars(rows) + `<p class="note">shares of ${lasting(t)}, mean of ${workers} worker${workers > 1 ? "s" : ""}</p>`;
}

function drawLog(k) {
  const rows = 9, from = Math.max(0, Math.min(k - 5, last - rows)), out = [];
  for (let i = from; i < Math.min(last, from + rows); i++) {
    const said = text(deed(i + 1));
    out.push(`<li data-k="${i + 1}" class="${i === k - 1 ? "now" : i >= k ? "later" : ""}"><span class="t">${clock(run.times[i])}</span>`
      + `${badge(run.events[i][0])} <span class="said" title="${said}">${said}</span></li>`);
  }
  byId("log").innerHTML = out.join("");
}

byId("log").addEventListener("click", (e) => { const li = e.target.closest("li"); if (li) go(Number(li.dataset.k)); });

/** What happened at an event, in words. */
const deed = (k) => run.events[k - 1][2];

function sentence(k) {
  if (!k) return `<span class="at">before ${eventAt(1)}</span>` + (run.first ? "" : ": every program is at its first yield");
  const [p] = run.events[k - 1], [where, line] = sourceOf(standing(p, k)[1]), stop = stopAt(k), who = stop === null ? p : stop, reason = reasonOf(who, k);
  return `<span class="at">${eventAt(k)}, ${clock(run.times[k - 1])}:</span> ${text(labels[p])} ${text(deed(k))}`
    + (reason ? `<br>${text(labels[who])} waits${text(reason[1])}` : where ? `<br><span class="at">and is now at ${text(where)}, ${text(line)}</span>` : "");
}

// -- moving --------------------------------------------------------------------------------------------------

function go(k) {
  position = Math.max(0, Math.min(last, k));
  const now = position ? run.events[position - 1][0] : -1, [flying, inbox] = underWay(position);
  const note = byId("now"), slider = byId("position");
  note.innerHTML = sentence(position);
  drawMarks(position, now);
  drawState(position, now);
  drawMessages(flying, inbox);
  drawAges(position);
  drawIdle(position);
  drawLog(position);
  moveCursor(position, flying);
  slider.value = position;
  slider.setAttribute("aria-valuetext", eventAt(position));
  for (const [id, off] of [["start", !position], ["back", !position], ["forward", position === last], ["end", position === last]]) byId(id).setAttribute("aria-disabled", off);
}

function play(on) {
  clearInterval(timer);
  timer = null;
  if (on) {
    if (position === last) go(0);
    timer = setInterval(() => { if (position < last) go(position + 1); else play(false); }, 1000 / Number(byId("speed").value));
  }
  byId("now").setAttribute("aria-live", on ? "off" : "polite");
  byId("play").querySelector("path").setAttribute("d", on ? "M3 2h4v12H3zM9 2h4v12H9z" : "M4 2v12l10-6z");
  byId("play").setAttribute("aria-label", on ? "pause" : "play");
}

const jump = (list) => { const i = before(list, position); go(i + 1 < list.length ? list[i + 1] : last); };
/** Go to the next worker that is held back, after the last one to the first; say so, also if there is none. */
function nextWait() {
  const stops = run.stops.map(first), next = before(stops, position) + 1, note = byId("now");
  if (stops.length) go(stops[next] ?? stops[0]);
  if (!stops.length) note.innerHTML = "In these events no worker is held back: every wait is for a message on the wire or for a computation.";
  else if (next === stops.length) note.innerHTML = `<span class="at">from the start again:</span> ${note.innerHTML}`;
}

const acts = {
  start: () => go(0), back: () => go(position - 1), forward: () => go(position + 1), end: () => go(last),
  update: () => jump(run.events.flatMap(([, kind], i) => (kind === "update" ? [i + 1] : []))), wait: nextWait,
};
for (const id in acts) byId(id).addEventListener("click", () => { play(false); acts[id](); });
byId("play").addEventListener("click", () => play(timer === null));
byId("speed").addEventListener("change", (e) => { if (timer !== null) play(true); e.target.blur(); });  // keys act again
byId("position").max = last;
byId("position").addEventListener("input", (e) => { play(false); go(Number(e.target.value)); });
byId("less").addEventListener("click", () => rescale(1 / 1.5));
byId("more").addEventListener("click", () => rescale(1.5));

function rescale(factor) {
  zoom = Math.min(12, Math.max(0.05, zoom * factor));
  drawDiagram();
  go(position);
}

const keys = { ArrowRight: "forward", ArrowLeft: "back", Home: "start", End: "end", u: "update", w: "wait" };
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "SELECT") return;
  const act = keys[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  if (e.key === " " && !["BUTTON", "SUMMARY"].includes(e.target.tagName)) play(timer === null);
  else if (act) { play(false); acts[act](); }
  else return;
  e.preventDefault();
});

let resized = null;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { drawDiagram(); fitListing(); go(position); }, 120); });

if (run.total > last) byId("part").textContent = `events ${run.first + 1} to ${run.first + last} of ${run.total}`;
byId("sample").innerHTML = `: ${badge(0)} is ${text(labels[0])}`;
drawLegend();
drawDiagram();
if (run.actions) {
  byId("next").hidden = false;
  byId("actions").innerHTML = run.actions.map(([command, said]) => `<li>${text(said)} <code>${text(command)}</code></li>`).join("") || "<li>nothing: the run is over</li>";
}
if (!calm) document.documentElement.classList.add("moving");
fitListing();
byId("guide").addEventListener("toggle", () => { fitListing(); go(position); });
go(run.atEnd ? last : 0);
window.player = { go, count: last, at: () => position };
})();
