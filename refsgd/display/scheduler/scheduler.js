// Be the scheduler: a walk through the state graph.  A state is [views, wire, inbox, moves, end?]; a view is
// [place, sentence, locals, counts, gate]; a move is [program, text, next state, events].  Everything shown
// depends only on the path, so undo and redo show the same.
(function () {
"use strict";

const graph = JSON.parse(document.getElementById("graph").textContent);
const say = (number) => graph.texts[number];
const path = [];  // moves done: [state before, number of the move]
let undone = [];  // moves taken back, the next one last

const movesOf = (state) => graph.states[state][3];
const target = ([state, number]) => movesOf(state)[number][2];
const here = () => (path.length ? target(path[path.length - 1]) : 0);

// -- names and colours -------------------------------------------------------------------------------------------

let workers = 0;
const nodeStyle = graph.nodes.map((_, i) => (graph.workers[i] ? "c" + (workers++ % 8) : "cs"));
const label = (p) => graph.nodes[graph.programs[p][0]] + (graph.programs[p][1] ? `[${graph.programs[p][1]}]` : "");
const short = (p) => label(p).replace(/^([a-z])[a-z]*(\d+)/i, "$1$2");
const badge = (p) => `<span class="mark ${nodeStyle[graph.programs[p][0]]}" title="${text(label(p))}">${text(short(p))}</span>`;

// -- distances ---------------------------------------------------------------------------------------------------

const into = graph.states.map(() => []);
graph.states.forEach((state, from) => state[3].forEach((move) => into[move[2]].push(from)));

/** By state: how many moves it takes to reach one of `goal`, -1 if that is impossible from there. */
function distances(goal) {
  const far = new Int32Array(graph.states.length).fill(-1), queue = [...goal];
  for (const state of goal) far[state] = 0;
  for (let i = 0; i < queue.length; i++) {
    for (const from of into[queue[i]]) if (far[from] < 0) { far[from] = far[queue[i]] + 1; queue.push(from); }
  }
  return far;
}

const goals = graph.goals.map((goal) => ({ text: goal.text, states: new Set(goal.states), far: distances(goal.states), best: 0 }));

/** Note the goals that the present state reaches; returns those that are new. */
function check() {
  const fresh = [];
  for (const goal of goals) {
    if (!goal.states.has(here())) continue;
    if (!goal.best) fresh.push(goal);
    if (!goal.best || path.length < goal.best) goal.best = path.length;
  }
  return fresh;
}

const moves = (n) => n + (n === 1 ? " move" : " moves");

function drawGoals() {
  byId("goals").innerHTML = goals.map((goal, i) => {
    const few = goal.far[0], from = goal.far[here()];
    let said = `fewest: ${moves(few)}`;
    if (few < 0) said = `impossible in all ${graph.states.length} states`;
    else if (goal.best) said = `<span class="reached">reached in ${moves(goal.best)}</span>, ` + said;
    const hint = few < 0 || from === 0 ? "" : from < 0 ? (goal.best ? "" : '<span class="few">no longer possible: undo</span>')
      : `<button type="button" data-goal="${i}" aria-label="a move towards: ${text(goal.text)}">help: ${from === 1 ? "the last move" : `1 of ${moves(from)}`}</button>`;
    return `<li><span class="tick" aria-hidden="true">${few < 0 ? "–" : goal.best ? "✓" : "○"}</span><span class="what">${text(goal.text)}</span><span class="few">${said}</span>${hint}</li>`;
  }).join("");
}

/** The first move of a shortest way to a goal. */
function help(goal) {
  const state = here(), next = movesOf(state).findIndex((move) => goal.far[move[2]] === goal.far[state] - 1);
  if (goal.far[state] > 0) choose(next);
}

// -- the diagram -------------------------------------------------------------------------------------------------

/** The events of the path: {p, said, kind, message, move}; kind 1 sends its message, 2 takes it. */
function happened() {
  return path.flatMap(([state, number], i) => movesOf(state)[number][3].map((e) => {
    const [p, said, kind, message] = graph.events[e];
    return { p, said, kind, message, move: i + 1 };
  }));
}

function drawDiagram(events) {
  const lane = 30, gap = 20, box = byId("scroll"), height = graph.programs.length * lane + 8;
  const width = Math.max(box.clientWidth - 4, events.length * gap + 60);
  const x = (i) => 16 + i * gap, y = (p) => 18 + p * lane;
  const svg = canvas({ width, height, "aria-label": `Space-time diagram of ${events.length} events` });
  graph.programs.forEach((_, p) => svg.append(shape("line", { class: "grid", x1: 0, x2: width, y1: y(p), y2: y(p) })));
  const taken = new Map();
  events.forEach((e, i) => { if (e.kind === 2) taken.set(e.message, i); });
  events.forEach((e, i) => {
    if (e.kind !== 1) return;
    const to = graph.programs.findIndex(([node]) => graph.nodes[node] === e.message.replace(/.*>(.*)#\d+$/, "$1"));
    const j = taken.get(e.message), open = j === undefined;
    svg.append(shape("path", { class: "message" + (open ? " flying" : ""), "marker-end": "url(#tip)",
      d: `M${x(i)},${y(e.p)}L${open ? x(events.length) + 12 : x(j) - 5},${open ? (y(e.p) + 3 * y(to)) / 4 : y(events[j].p)}` }));
  });
  events.forEach((e, i) => {
    const hint = shape("title", {}, `move ${e.move}: ${label(e.p)} ${e.said}`);
    svg.append(shape("circle", { class: `point ${nodeStyle[graph.programs[e.p][0]]}${/^applies/.test(e.said) ? " update" : e.said === "died" ? " death" : ""}`, cx: x(i), cy: y(e.p), r: 5, "data-move": e.move }, hint));
  });
  box.replaceChildren(svg);
  box.scrollLeft = width;
  byId("lanes").innerHTML = '<div style="height:3px"></div>' + graph.programs.map((_, p) => `<div style="height:${lane}px">${badge(p)}</div>`).join("");
}

/** The events with vector clocks, in the form that ShiViz reads by default: event, then host and clock. */
function shiviz(events) {
  const clocks = graph.programs.map(() => ({})), sent = {};
  const host = (p) => label(p).replace(/[[\]]/g, "_");
  return events.map(({ p, said, kind, message }) => {
    const clock = clocks[p];
    clock[host(p)] = (clock[host(p)] || 0) + 1;
    if (kind === 2) for (const name in sent[message]) clock[name] = Math.max(clock[name] || 0, sent[message][name]);
    if (kind === 1) sent[message] = { ...clock };
    return `${said}\n${host(p)} ${JSON.stringify(clock)}\n`;
  }).join("");
}

// -- the state ---------------------------------------------------------------------------------------------------

const marked = new Set();
const viewsOf = (state) => graph.states[state][0].map((view) => graph.views[view]);

/** The program that the last move has left waiting for another one, or -1. */
function heldSince(before) {
  const old = before === null ? null : viewsOf(before);
  return old ? viewsOf(here()).findIndex((view, p) => view[4] >= 0 && old[p][4] < 0) : -1;
}

function drawSource(now, held) {
  for (const line of marked) { line.className = "line"; line.children[1].replaceChildren(); }
  for (const line of marked) if (line.matches("summary")) line.children[1].innerHTML = line.dataset.more || "";
  marked.clear();
  let first = null;
  const mark = (place, style, html) => {
    const line = byId(idOf(place));
    if (!line) return null;
    if (!marked.has(line) && line.matches("summary")) line.dataset.more ??= line.children[1].innerHTML;
    line.classList.add(...style.split(" "));
    line.children[1].insertAdjacentHTML("beforeend", html);
    marked.add(line);
    return line;
  };
  viewsOf(here()).forEach(([place, , , , gate], p) => {
    if (gate >= 0) {
      const line = mark(graph.places[gate][0], "gate", `<span class="waits">${text(short(p))} waits</span>`);
      if (p === held) first = line;
    }
    if (place < 0) return;
    const frames = graph.places[place], line = mark(frames[frames.length - 1], p === now ? "lit now" : "lit", badge(p));
    if (p === now && !first) first = line;
  });
  if (first) reveal(first);
}

/** Scroll only the listing. */
function reveal(line) {
  for (let fold = line.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  const box = byId("listing"), around = box.getBoundingClientRect(), at = line.getBoundingClientRect();
  if (at.top < around.top + 20 || at.bottom > around.bottom - 30) box.scrollTop += at.top - around.top - box.clientHeight * 0.45;
}

function drawState(before, now) {
  const old = before === null ? null : viewsOf(before);
  byId("state").innerHTML = viewsOf(here()).map(([place, said, values, counts], p) => {
    const known = new Set(old ? old[p][2] : values), frames = place < 0 ? null : graph.places[place];
    const at = frames ? frames[frames.length - 1] : null, sentence = say(said).slice(label(p).length + 1);
    const local = values.map((v) => `<span class="${known.has(v) ? "" : "changed"}">${text(say(v)).replace(/^\S+/, "<em>$&</em>")}</span>`);
    return `<div class="program${p === now ? " now" : ""}"><p class="head">${badge(p)}<strong>${text(label(p))}</strong>`
      + `<span class="where">${at ? text(graph.files[at[0]].split("/").pop()) + ":" + at[1] : ""}</span><span class="counts">${text(say(counts))}</span></p>`
      + `<p class="says">${text(sentence).replace(/^waits/, "<b>waits</b>")}</p><div class="locals">${local.join("")}</div></div>`;
  }).join("");
  const list = (head, items) => listed(head, items.map((m) => `<li>${text(say(m))}</li>`));
  byId("messages").innerHTML = list("on the wire", graph.states[here()][1]) + list("in an inbox, not taken yet", graph.states[here()][2]);
}

function drawMoves() {
  const [, , , choices, end] = graph.states[here()];
  byId("moves").innerHTML = choices.map(([p, said], i) =>
    `<button type="button" data-move="${i}"><span class="key">${i + 1}</span>${badge(p)}<span>${text(say(said))}</span></button>`).join("")
    + (end === undefined ? "" : `<p class="over${/^the run is over(, with|$)/.test(say(end)) ? "" : " badend"}">${text(say(end))}</p>`);
}

// -- moving ------------------------------------------------------------------------------------------------------

/** A sentence without its values and its line, which the panel of the programs shows. */
const brief = (sentence) => sentence.replace(/ \([^()]*\)/, "").replace(/; \S+:\d+$/, "");

function draw(before, did) {
  const last = path[path.length - 1], now = last ? movesOf(last[0])[last[1]][0] : -1, fresh = check(), events = happened();
  const views = viewsOf(here()), held = heldSince(before), told = held < 0 ? now : held, end = graph.states[here()][4];
  drawMoves();
  drawGoals();
  drawDiagram(events);
  drawSource(now, held);
  drawState(before, now);
  byId("count").textContent = `${moves(path.length)} so far`;
  const reached = fresh.map((goal) => `Goal reached: ${text(goal.text)}.`).join(" ");
  const then = told >= 0 ? text(brief(say(views[told][1]))) + "." : `${movesOf(here()).length === 1 ? "One thing" : `${movesOf(here()).length} things`} may happen next. Choose one.`;
  byId("now").innerHTML = (did ? `<span class="at">${text(did)}.</span> ` : "") + (reached ? reached + " " : "") + (end === undefined ? then : `Now ${text(say(end).replace(/^deadlock: .*/s, "no program can continue: a deadlock"))}.`);
  byId("undo").setAttribute("aria-disabled", !path.length);
  byId("restart").setAttribute("aria-disabled", !path.length);
  byId("redo").setAttribute("aria-disabled", !undone.length);
  byId("export").href = "data:text/plain;charset=utf-8," + encodeURIComponent(shiviz(events));
}

function choose(number) {
  const state = here(), move = movesOf(state)[number];
  if (!move) return;
  const next = undone[undone.length - 1];
  if (next && next[0] === state && next[1] === number) undone.pop(); else undone = [];
  path.push([state, number]);
  draw(state, say(move[1]));
}

const acts = {
  undo: () => { if (path.length) { undone.push(path.pop()); draw(null, "Taken back"); } },
  redo: () => { if (undone.length) choose(undone[undone.length - 1][1]); },
  restart: () => { while (path.length) undone.push(path.pop()); draw(null, "Back to the start"); },
};
for (const id in acts) byId(id).addEventListener("click", acts[id]);
/** Buttons are drawn anew by each move: the focus stays in their panel. */
function keepFocus(panel, act) {
  act();
  const buttons = byId(panel).querySelectorAll("button");
  (buttons[0] || byId("undo")).focus({ preventScroll: true });
}
byId("moves").addEventListener("click", (e) => {
  const button = e.target.closest("button");
  if (button) keepFocus("moves", () => choose(Number(button.dataset.move)));
});
byId("goals").addEventListener("click", (e) => {
  const button = e.target.closest("button");
  if (!button) return;
  const goal = button.dataset.goal;
  help(goals[goal]);
  (byId("goals").querySelector(`[data-goal="${goal}"]`) || byId("undo")).focus({ preventScroll: true });
});
byId("scroll").addEventListener("click", (e) => {
  const point = e.target.closest("[data-move]");
  if (!point) return;
  while (path.length > Number(point.dataset.move)) undone.push(path.pop());
  draw(null, `Back to move ${path.length}`);
});
const keys = { ArrowLeft: "undo", ArrowRight: "redo", Home: "restart" };
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || (e.target.id === "scroll" && e.key.startsWith("Arrow"))) return;
  if (/^[1-9]$/.test(e.key)) choose(Number(e.key) - 1);
  else if (keys[e.key]) acts[keys[e.key]]();
  else return;
  e.preventDefault();
});
let resized = null;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => drawDiagram(happened()), 120); });
draw(null, "");
window.scheduler = { choose, acts, graph, goals, path: () => path.map((step) => step[1]), here, shiviz: () => shiviz(happened()) };
})();
