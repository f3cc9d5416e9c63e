// Two painters of the same picture: on a canvas for the screen, as SVG for papers.

const FONT = 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif';

class CanvasPainter {
  constructor(canvas, width, height) {
    const ratio = Math.min(window.devicePixelRatio || 1, 16000 / height); // browsers limit a canvas's height
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    this.g = canvas.getContext("2d");
    this.g.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.rect(0, 0, width, height, color("--ground"));
  }

  rect(x, y, width, height, fill) {
    this.g.fillStyle = fill;
    this.g.fillRect(x, y, width, height);
  }

  text(x, y, text, fill, { size = 12, weight = 400, anchor = "start", most } = {}) {
    this.g.font = `${weight} ${size}px ${FONT}`;
    this.g.fillStyle = fill;
    this.g.textAlign = anchor === "middle" ? "center" : anchor;
    let shown = text;
    while (most && shown.length > 1 && this.g.measureText(shown).width > most)
      shown = `${shown.slice(0, -2)}\u2026`;
    this.g.fillText(shown, x, y);
  }
}

class SvgPainter {
  constructor(width, height) {
    this.picture = svg("svg", {
      xmlns: "http://www.w3.org/2000/svg",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      "font-family": FONT,
    });
    this.rect(0, 0, width, height, color("--ground"));
  }

  rect(x, y, width, height, fill, title) {
    const mark = svg("rect", { x: x.toFixed(2), y, width: width.toFixed(2), height, fill });
    this.picture.append(title ? described(mark, title) : mark);
  }

  text(x, y, text, fill, { size = 12, weight = 400, anchor = "start" } = {}) {
    this.picture.append(
      svg("text", { x, y, fill, "font-size": size, "font-weight": weight, "text-anchor": anchor }, text),
    );
  }

  get result() {
    return new XMLSerializer().serializeToString(this.picture);
  }
}
