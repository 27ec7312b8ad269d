/** What a library said of a file, as the end of a sentence; what its code stumbled over says nothing to whoever sent the file. */
export function because(error: unknown): string {
  const stumbled = !(error instanceof Error) || error.name !== 'Error' || /\b(undefined|null|not a function)\b/.test(error.message)
  return stumbled ? '' : `: ${error.message.slice(0, 200).replace(/\.$/, '')}`
}

/** The file is not what its format says, or holds more than it may: nothing of it is kept. */
export class Unreadable extends Error {
  readonly code: 'file_not_readable' | 'file_too_large' | 'file_not_utf8' | 'file_empty'
  constructor(code: Unreadable['code'], message: string) {
    super(message)
    this.code = code
  }
}
