// Light, dark or the system's. public/theme.js sets the choice before the first pixel.
import { useSyncExternalStore } from 'react'

export type Theme = 'light' | 'dark' | 'system'
const key = 'tunery.theme'
const listeners = new Set<() => void>()

function read(): Theme {
  const set = document.documentElement.dataset.theme
  return set === 'light' || set === 'dark' ? set : 'system'
}

export function setTheme(theme: Theme): void {
  if (theme === 'system') delete document.documentElement.dataset.theme
  else document.documentElement.dataset.theme = theme
  try {
    if (theme === 'system') localStorage.removeItem(key)
    else localStorage.setItem(key, theme)
  } catch {
    // Storage may be refused: the choice then lasts as long as the page.
  }
  for (const listener of listeners) listener()
}

const dark = matchMedia('(prefers-color-scheme: dark)')

function subscribe(listener: () => void): () => void {
  listeners.add(listener)
  dark.addEventListener('change', listener)
  return () => {
    listeners.delete(listener)
    dark.removeEventListener('change', listener)
  }
}

export const useTheme = (): Theme => useSyncExternalStore(subscribe, read)

/** Whether the page is dark now; for what is drawn and not styled. */
export const useIsDark = (): boolean =>
  useSyncExternalStore(subscribe, () => (read() === 'system' ? dark.matches : read() === 'dark'))
