"use strict";
// Steps through the frames of episodes, and reads values off the curves. The page is whole without it.

const pictures = JSON.parse(document.getElementById("pictures").textContent);

for (const frames of document.querySelectorAll("[data-frames]")) {
  const shown = frames.dataset.frames.split(" ").map((word) => word.split(":"));
  const captions = [...frames.querySelector("template").content.children].map((line) => line.textContent);
  const [image, slider, caption] = ["img", "input", ".caption"].map((name) => frames.querySelector(name));
  const turns = frames.parentElement.querySelector(".turns");
  const show = (number) => {
    const [key, turn] = shown[number];
    slider.value = number;
    image.src = pictures[key];
    image.alt = caption.textContent = captions[number];
    for (const item of turns.children) {
      const now = item.dataset.turn === turn;
      item.classList.toggle("now", now);
      if (now) turns.scrollTop = item.offsetTop - turns.offsetTop;
    }
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  for (const button of frames.querySelectorAll("[data-move]")) {
    button.addEventListener("click", () => {
      const next = Number(slider.value) + Number(button.dataset.move);
      show(Math.min(Math.max(next, 0), shown.length - 1));
    });
  }
}

for (const figure of document.querySelectorAll("[data-chart]")) {
  const chart = JSON.parse(figure.dataset.chart);
  const svg = figure.querySelector("svg");
  const cursor = svg.querySelector(".cursor");
  const tip = figure.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  const text = (value) => (chart.percent ? `${(100 * value).toFixed(1)}%` : Number(value.toPrecision(4)).toLocaleString("en"));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / chart.width;
    const [low, high] = chart.x;
    const at = low + (((event.clientX - box.left) / scale - chart.left) / (chart.right - chart.left)) * (high - low);
    const near = (line) => line.p.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
    const found = chart.lines.map((line) => [line.name, near(line)]);
    if (!found.length) return;
    const step = found.map(([, point]) => point[0]).reduce((best, x) => (Math.abs(x - at) < Math.abs(best - at) ? x : best));
    const here = found.filter(([, point]) => point[0] === step);
    const x = chart.left + ((step - low) / (high - low || 1)) * (chart.right - chart.left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
    const lines = here.map(([name, [, y, error]]) => `${name ? name + "  " : ""}${text(y)}${error ? " ± " + text(error) : ""}`);
    tip.textContent = [`step ${Number(step.toFixed(1))}`, ...lines].join("\n");
    tip.hidden = false;
    const left = svg.offsetLeft + (box.left - figure.getBoundingClientRect().left) + x * scale + 12;
    tip.style.left = `${Math.min(left, figure.clientWidth - tip.offsetWidth - 6)}px`;
    tip.style.top = `${event.clientY - figure.getBoundingClientRect().top - 12}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  });
}
