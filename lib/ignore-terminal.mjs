// Loaded first into each Node program that the service starts (lib/child-process.ts).
for (const signal of ['SIGINT', 'SIGQUIT', 'SIGHUP']) process.on(signal, () => {})
