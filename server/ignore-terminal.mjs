// Loaded first into each Node program that the service starts (server/children.ts).
for (const signal of ['SIGINT', 'SIGQUIT', 'SIGHUP']) process.on(signal, () => {})
