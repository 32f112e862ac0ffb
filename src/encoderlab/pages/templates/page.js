"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;

/* ---------- theme ---------- */
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const applyTheme = (dark) => { root.dataset.theme = dark ? "dark" : "light"; };
systemDark.addEventListener("change", (event) => applyTheme(event.matches));
document.querySelector(".theme").addEventListener("click", () => applyTheme(root.dataset.theme !== "dark"));
addEventListener("beforeprint", () => {
  for (const more of document.querySelectorAll("details")) more.open = true;
  root.dataset.screen = root.dataset.theme;
  applyTheme(false);
});
addEventListener("afterprint", () => applyTheme(root.dataset.screen === "dark"));

/* ---------- copying, saving, and where the reader is ---------- */
for (const button of document.querySelectorAll(".command button"))
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
document.getElementById("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
  link.download = "report.json";
  link.click();
});
// What is wider than its place is scrolled by the keyboard, too.
for (const box of document.querySelectorAll(".scroll")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
const links = [...document.querySelectorAll("nav a")];
const sections = links.map((link) => document.querySelector(link.hash));
const follow = () => {
  const passed = sections.filter((section) => section.getBoundingClientRect().top < 160).length;
  const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 4;
  const here = (atEnd ? links.length : Math.max(1, passed)) - 1;
  links.forEach((link, place) => link.classList.toggle("here", place === here));
};
addEventListener("scroll", follow, { passive: true });
follow();
