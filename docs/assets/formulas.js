// Draws the formulas of a page with the KaTeX that lies beside this file.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    const displayMode = text.startsWith("\\[");
    katex.render(text.slice(2, -2), element, { displayMode, throwOnError: false });
  }
});
