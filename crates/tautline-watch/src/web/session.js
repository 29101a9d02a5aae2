"use strict";
// Requests of a page to its server. The printed address has the token behind "#", which browsers send to no server. It
// is sent once, for the value of a session, which the browser keeps for this scheme, address and port alone. That value
// ends with the server: a program that listens on the port afterwards learns nothing from a page that is still open.

const TIMEOUT_MS = 5000;

const sent = async (path, proof, options = {}) => {
  const headers = proof ? { authorization: "Bearer " + proof } : {};
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const answer = await fetch(path, { ...options, headers, credentials: "omit", signal });
  if (!answer.ok) throw new Error((await answer.text()).trim() || String(answer.status));
  return answer;
};

let login = null;
const take = () => {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return;
  history.replaceState(null, "", location.pathname);
  login = (async () => sessionStorage.setItem("session", await (await sent("/session", token)).text()))();
};
// Before the listeners of the page, which take the fragment for a place in it.
addEventListener("hashchange", take);
take();

const ask = async (path, options) => {
  await login;
  return sent(path, sessionStorage.getItem("session"), options);
};
