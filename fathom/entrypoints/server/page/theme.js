// Before anything is painted: the colours that were chosen last, if any; else the system's.
const chosen = localStorage.getItem("fathom.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
