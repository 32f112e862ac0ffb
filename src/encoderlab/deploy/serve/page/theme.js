"use strict";
// Before the first paint, so that a dark page does not flash white.
const dark = matchMedia("(prefers-color-scheme: dark)");
const apply = (on) => { document.documentElement.dataset.theme = on ? "dark" : "light"; };
apply(dark.matches);
dark.addEventListener("change", (event) => apply(event.matches));
addEventListener("DOMContentLoaded", () => {
  document.querySelector(".theme").addEventListener("click", () => {
    apply(document.documentElement.dataset.theme !== "dark");
  });
});
