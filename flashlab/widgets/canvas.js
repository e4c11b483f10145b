// Draws a scene (flashlab/widgets/scene.py) on a canvas, and reads its summary to a screen reader.
// data-seq on the outer element counts redraws: a test waits on it.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

const EDGE = 6; // pixels between words and the panel's edge, at least
const SAMPLE = "Largest batch at this context: 264 blocks, 34.36 GB";
const EM_A_LETTER = 0.465; // of the sample in the font that scenes are laid out with: DejaVu Sans, as figure.py scales it

let scale = 0;

// Below 1 where this machine's font runs wider than scenes are laid out for.
function narrow(ctx) {
  if (!scale) {
    ctx.font = `100px ${FONT}`;
    scale = Math.min(1, (100 * EM_A_LETTER * SAMPLE.length) / ctx.measureText(SAMPLE).width);
  }
  return scale;
}

const DRAW = {
  rect(ctx, s) {
    ctx.beginPath();
    ctx.roundRect(s.x, s.y, s.width, s.height, s.radius);
    if (s.fill) { ctx.fillStyle = s.fill; ctx.fill(); }
    if (s.stroke) { ctx.strokeStyle = s.stroke; ctx.lineWidth = s.line; ctx.stroke(); }
  },
  line(ctx, s) {
    ctx.beginPath();
    ctx.setLineDash(s.dashed ? [4 * s.line, 3 * s.line] : []);
    ctx.moveTo(s.x1, s.y1);
    ctx.lineTo(s.x2, s.y2);
    ctx.strokeStyle = s.stroke;
    ctx.lineWidth = s.line;
    ctx.stroke();
    ctx.setLineDash([]);
  },
  text(ctx, s, width) {
    ctx.font = `${s.bold ? "600 " : ""}${s.size * narrow(ctx)}px ${FONT}`;
    ctx.textAlign = { start: "left", middle: "center", end: "right" }[s.anchor];
    ctx.fillStyle = s.fill;
    ctx.fillText(s.text, s.x, s.y, { start: width - s.x, middle: 2 * Math.min(s.x, width - s.x), end: s.x }[s.anchor] - EDGE);
  },
  cells(ctx, s) {
    for (let i = 0; i < s.codes.length; i++) {
      ctx.fillStyle = s.colours[s.codes[i]];
      ctx.fillRect(s.x + (i % s.columns) * s.step, s.y + Math.floor(i / s.columns) * s.step, s.width, s.height);
    }
  },
  path(ctx, s) {
    ctx.beginPath();
    for (let i = 0; i < s.points.length; i += 2) ctx.lineTo(s.points[i], s.points[i + 1]);
    ctx.strokeStyle = s.stroke;
    ctx.lineWidth = s.line;
    ctx.lineJoin = "round";
    ctx.stroke();
  },
  mark(ctx, s) {
    const r = s.size;
    ctx.beginPath();
    if (s.shape === "circle") ctx.arc(s.x, s.y, r, 0, 2 * Math.PI);
    else if (s.shape === "square") ctx.rect(s.x - r, s.y - r, 2 * r, 2 * r);
    else for (const [dx, dy] of [[1.2 * r, 0], [0, 1.2 * r], [-1.2 * r, 0], [0, -1.2 * r]]) ctx.lineTo(s.x + dx, s.y + dy);
    ctx.closePath();
    if (s.fill) { ctx.fillStyle = s.fill; ctx.fill(); }
    if (s.stroke) { ctx.strokeStyle = s.stroke; ctx.lineWidth = s.line; ctx.stroke(); }
  },
};

// JupyterLab in command mode takes arrows and letters for itself ("d d" deletes the cell) unless the very element that has
// the focus says no.
function keepKeys(el, tries = 60) {
  const widget = el.closest(".widget-vbox");
  if (widget) widget.addEventListener("focusin", (event) => event.target.setAttribute("data-lm-suppress-shortcuts", "true"));
  else if (tries) requestAnimationFrame(() => keepKeys(el, tries - 1));
}

function render({ model, el }) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  const words = document.createElement("p");
  words.setAttribute("aria-live", "polite");
  words.style.cssText = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);margin:0";
  el.style.position = "relative";
  el.dataset.flashlab = "scene";
  el.append(canvas, words);
  let seq = 0;

  function redraw() {
    const { width, height, panel, summary, shapes } = model.get("scene");
    const ratio = Math.max(window.devicePixelRatio || 1, 1);
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.cssText =
      `width:${width}px;max-width:100%;aspect-ratio:${width}/${height};border-radius:8px;display:block`;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.fillStyle = panel;
    ctx.fillRect(0, 0, width, height);
    for (const shape of shapes) DRAW[shape.kind](ctx, shape, width);
    canvas.setAttribute("aria-label", summary);
    words.textContent = summary;
    seq += 1;
    el.dataset.seq = String(seq);
  }

  model.on("change:scene", redraw);
  redraw();
  keepKeys(el);
  return () => model.off("change:scene", redraw);
}

export default { render };
