// What the player and the scheduler share.
const byId = (id) => document.getElementById(id);
const text = (value) => String(value).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" }[c]));
const idOf = ([file, line]) => `f${file}l${line}`;
/** A heading, and the items of a list as HTML, if there are any. */
const listed = (head, items) => `<h4>${head}</h4>` + (items.length ? `<ul>${items.join("")}</ul>` : '<p class="note">none</p>');

function shape(tag, attributes, inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  if (inside) made.append(inside);
  return made;
}

/** A picture, with the tip of arrows. */
function canvas(attributes) {
  const svg = shape("svg", { role: "img", ...attributes });
  svg.innerHTML = '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,1L7,4L0,7z" fill="context-stroke"/></marker></defs>';
  return svg;
}

// In the frame of another page: its switch between light and dark replaces the system's choice, and keys arrive only
// after a click into the frame, which the help says until then.
{
  const dark = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
    .filter((rule) => rule.media && rule.media.mediaText.includes("prefers-color-scheme: dark"));
  window.addEventListener("message", ({ data }) => {
    if (!data || !["light", "dark"].includes(data.theme)) return;
    for (const rule of dark) rule.media.mediaText = data.theme === "dark" ? "all" : "not all";
    document.documentElement.style.colorScheme = data.theme;
  });
  const framed = window.parent !== window, say = () => { byId("click").hidden = !framed || document.hasFocus(); };
  if (framed) window.parent.postMessage("theme?", "*");
  for (const change of ["focus", "blur"]) window.addEventListener(change, say);
  say();
}
