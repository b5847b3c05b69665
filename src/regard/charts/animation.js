(() => {
  const box = document.currentScript.parentElement;
  const [play, previous, next] = box.querySelectorAll("button");
  const slider = box.querySelector("input");
  const stops = box.dataset.stops.split(",").map(Number);
  const duration = Number(box.dataset.duration);
  const animations = () => box.querySelector("svg").getAnimations({ subtree: true });
  // currentTime counts the delay and all cycles
  const time = () => {
    const [first] = animations();
    return first ? (first.currentTime - first.effect.getTiming().delay) % duration : 0;
  };
  let running = !matchMedia("(prefers-reduced-motion: reduce)").matches;

  function set(isRunning) {
    running = isRunning;
    play.textContent = running ? "Pause" : "Play";
    for (const animation of animations()) running ? animation.play() : animation.pause();
  }
  function seek(milliseconds) {
    set(false);
    for (const animation of animations()) {
      animation.currentTime = milliseconds + animation.effect.getTiming().delay;
    }
    slider.value = milliseconds;
  }
  function update() {
    if (running) slider.value = time();
    requestAnimationFrame(update);
  }

  slider.max = duration - 1;
  slider.value = running ? 0 : duration - 100;
  play.textContent = running ? "Pause" : "Play";
  play.addEventListener("click", () => set(!running));
  slider.addEventListener("input", () => seek(Number(slider.value)));
  next.addEventListener("click", () => {
    seek(stops.find((stop) => stop > Number(slider.value) + 1) ?? stops[0]);
  });
  previous.addEventListener("click", () => {
    seek(stops.findLast((stop) => stop < Number(slider.value) - 1) ?? stops.at(-1));
  });
  requestAnimationFrame(update);
})();
