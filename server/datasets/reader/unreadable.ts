/** The file is not what its format says, or holds more than it may: nothing of it is kept. */
export class Unreadable extends Error {
  readonly code: 'file_not_readable' | 'file_too_large' | 'file_not_utf8' | 'file_empty'
  constructor(code: Unreadable['code'], message: string) {
    super(message)
    this.code = code
  }
}
