// The theme that was chosen; without a choice the system's. See web/lib/theme.ts.
try {
  const theme = localStorage.getItem('tunery.theme')
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme
} catch {}
