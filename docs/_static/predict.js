/* A question that begins with "Predict." hides what follows it, up to the next question or section, until the reader has
   written an answer.  Nothing is stored or sent.  Without JavaScript, and on paper, everything shows. */
document.addEventListener("DOMContentLoaded", () => {
  const asks = (e) => e.tagName === "BLOCKQUOTE" && e.querySelector("strong")?.textContent === "Predict.";
  let number = 0;
  for (const question of [...document.querySelectorAll("section > blockquote")].filter(asks)) {
    const locked = [];
    for (let e = question.nextElementSibling; e && e.tagName !== "SECTION" && !asks(e); e = e.nextElementSibling) locked.push(e);
    if (!locked.length) continue;
    const form = document.createElement("form"), id = `prediction-${++number}`;
    form.className = "prediction";
    form.innerHTML = `<label for="${id}">Your prediction</label><textarea id="${id}" rows="2"></textarea>
      <button type="submit">Show what happens</button><p role="status"></p>`;
    question.after(form);
    for (const e of locked) e.classList.add("until-predicted");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const answer = form.querySelector("textarea"), status = form.querySelector("[role=status]");
      if (!answer.value.trim()) {
        status.textContent = "Write an answer first; a guess is enough.";
        answer.focus();
        return;
      }
      for (const e of locked) e.classList.remove("until-predicted");
      form.querySelector("button").remove();
      answer.readOnly = true;
      status.textContent = "What follows shows what happens.";
    });
  }
});
