/** Something that `doctor` looked at. */
export interface Check {
  name: string
  /** A warning limits what works; a problem stops something. */
  status: 'ok' | 'warning' | 'problem'
  message: string
  /** What to do, if it is not ok. */
  todo?: string
}

export const ok = (name: string, message: string): Check => ({ name, status: 'ok', message })
export const warning = (name: string, message: string, todo: string): Check => ({
  name,
  status: 'warning',
  message,
  todo,
})
export const problem = (name: string, message: string, todo: string): Check => ({
  name,
  status: 'problem',
  message,
  todo,
})
