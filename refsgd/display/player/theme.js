// In a page that has a switch between light and dark, its choice replaces that of the system.
{
  const dark = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
    .filter((rule) => rule.media && rule.media.mediaText.includes("prefers-color-scheme: dark"));
  window.addEventListener("message", ({ data }) => {
    if (!data || !["light", "dark"].includes(data.theme)) return;
    for (const rule of dark) rule.media.mediaText = data.theme === "dark" ? "all" : "not all";
    document.documentElement.style.colorScheme = data.theme;
  });
  if (window.parent !== window) window.parent.postMessage("theme?", "*");
}
