// The admin page: the relay that serves it, as /status.json says it every two seconds.
"use strict";

follow("status.json", 2000, (data) => {
  entitle(`Taut relay ${data.relay.name ?? data.host}`);
  summarize(relayInWords(data.relay), false);
  showRelay(data);
}, (why) => summarize(`The relay does not answer: ${why}`, true));
