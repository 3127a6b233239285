// Copy buttons of shell blocks with prompts copy what one would type: lines behind "$ ", without the prompt.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-clipboard-target]");
  if (!button) return;
  const code = document.querySelector(button.dataset.clipboardTarget);
  const lines = code ? code.innerText.split("\n") : [];
  if (!lines.some((line) => line.startsWith("$ "))) return;
  event.stopImmediatePropagation();
  const typed = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
  navigator.clipboard.writeText(typed.join("\n") + "\n");
}, true);
