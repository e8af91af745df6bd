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
  const framed = window.parent !== window, say = () => { document.getElementById("click").hidden = !framed || document.hasFocus(); };
  if (framed) window.parent.postMessage("theme?", "*");
  for (const change of ["focus", "blur"]) window.addEventListener(change, say);
  say();
}
