// Opened as a file, a static page cannot load its modules: browsers allow that only from a web server.
if (location.protocol === "file:")
  document.getElementById("status").textContent = "This page works only from a web server: run “python -m http.server” in its folder and open http://localhost:8000.";
