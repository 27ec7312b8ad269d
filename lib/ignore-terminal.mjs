// Preloaded into each Node child process; see lib/child-process.ts.
for (const signal of ['SIGINT', 'SIGQUIT', 'SIGHUP']) process.on(signal, () => {})
