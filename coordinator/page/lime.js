// The page of lime serve: a chat, the cluster that answers, and the key where the server asks for
// one. No part keeps anything beyond the tab; see the README of this folder.
import {Chat} from './lime-chat.js';
import {ClusterView} from './lime-cluster.js';
import {ClusterWatch, Server} from './lime-server.js';
import {byId, fromTemplate, setText} from './lime-text.js';

const server = new Server();
const status = document.querySelector('[data-testid="status"]');
const model = document.querySelector('[data-testid="model"]');
const view = new ClusterView();
const chat = new Chat(server, askForKey);
const watch = new ClusterWatch(server, {
  onState(state, text) {
    status.dataset.state = state;
    setText(status, text);
    byId('enter-key').hidden = state !== 'locked';
    view.setLive(state === 'connected');
    if (state === 'locked') askForKey();
  },
  onCluster(cluster) {
    const name = String(cluster.model || cluster.name || '');
    setText(model, name);
    document.title = name ? `${name} · LIME` : 'LIME';
    view.show(cluster);
    chat.onCluster(cluster);
  },
});

// Opens the dialog, unless it is open. A key that was refused is forgotten.
function askForKey() {
  if (document.querySelector('dialog.key')) return;
  const dialog = fromTemplate('key-template');
  document.body.append(dialog);
  const [input, error] = [byId('key'), byId('key-error')];
  const say = (text) => {
    setText(error, text);
    error.hidden = text === '';
    input.setAttribute('aria-invalid', String(text !== ''));
  };
  say(server.hasKey ? 'The server refused that key. Try another one.' : '');
  server.useKey('');
  dialog.addEventListener('close', () => dialog.remove());
  dialog.querySelector('.cancel').addEventListener('click', () => dialog.close());
  dialog.querySelector('form').addEventListener('submit', (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(key)) {
      say('A key has visible ASCII characters and no blanks.');
      return;
    }
    server.useKey(key);
    dialog.close();
    watch.tryNow();
  });
  dialog.showModal();
  input.focus();
}

byId('enter-key').addEventListener('click', askForKey);
watch.run();
