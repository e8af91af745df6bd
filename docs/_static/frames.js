/* Players and schedulers in frames follow the page's switch between light and dark. */
const theme = () => ({ theme: document.documentElement.dataset.theme });
window.addEventListener("message", (event) => {
  if (event.data === "theme?") event.source.postMessage(theme(), "*");
});
new MutationObserver(() => {
  for (const frame of document.querySelectorAll("iframe")) frame.contentWindow.postMessage(theme(), "*");
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });
