// Files dropped on a page from `mgwfbp serve`: sent to that program and nowhere else.

class Drop {
  // `use(data)` replaces the data that the page shows.
  constructor(place, builtins, use) {
    this.use = use;
    this.message = el("p", { class: "notice bad", role: "alert", hidden: true });
    const input = el("input", {
      type: "file",
      multiple: true,
      class: "said",
      id: "files",
      onchange: () => this.addFiles(input.files),
    });
    const select = el(
      "select",
      { "aria-label": "built-in data" },
      el("option", { value: "" }, "built-in \u2026"),
      builtins.map((name) => el("option", { value: name }, name)),
    );
    select.addEventListener("change", () => {
      if (select.value) this.post("builtin", select.value, "");
      select.value = "";
    });
    append(place, [
      el(
        "div",
        { class: "bar" },
        el(
          "span",
          {},
          "Drop files here: a trace and a cluster, nccl-tests or OSU output, plans, timelines, JSON of replay and simulate. Nothing leaves this machine.",
        ),
      ),
      el(
        "div",
        { class: "bar" },
        el("button", { type: "button", id: "example", onclick: () => this.showExample() }, "show an example"),
        el("button", { type: "button", onclick: () => input.click() }, "choose files"),
        input,
        select,
        el("button", { type: "button", onclick: () => this.post("clear", "", "") }, "start over"),
      ),
      this.message,
    ]);
    place.hidden = false;
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      place.classList.add("over");
    });
    document.addEventListener("dragleave", () => place.classList.remove("over"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      place.classList.remove("over");
      this.addFiles(event.dataTransfer.files);
    });
  }

  // ResNet-50 on sixteen workers with 10 Gbit/s, where scheduling matters.
  async showExample() {
    for (const name of ["resnet50-b32-fp32-h200", "paper-2-10gbe"])
      if (!(await this.post("builtin", name, ""))) return;
  }

  async addFiles(files) {
    for (const file of [...files]) if (!(await this.post("add", file.name, file))) return;
  }

  async post(action, name, body) {
    try {
      const answer = await fetch(`${action}?name=${encodeURIComponent(name)}`, {
        method: "POST",
        body,
        headers: { "X-Mgwfbp": "1" },
      });
      const text = await answer.text();
      this.message.textContent = answer.ok ? "" : text;
      this.message.hidden = answer.ok;
      if (answer.ok) this.use(JSON.parse(text));
      return answer.ok;
    } catch (error) {
      this.message.textContent = `The program that served this page does not answer (${error.message}).`;
      this.message.hidden = false;
      return false;
    }
  }
}
