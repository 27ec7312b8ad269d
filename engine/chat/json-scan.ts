// Where a JSON value ends, in text that comes in pieces.

export type JsonScan = {
  /**
   * Takes the next text; returns how many of its characters belong to the value, and whether it has ended with them.
   */
  take(text: string): { length: number; ended: boolean }
}

/** Looks at brackets and quotes only: what is between them need not be right. */
export function createJsonScan(): JsonScan {
  let depth = 0
  let began = false
  let inString = false
  let escaped = false

  return {
    take(text) {
      for (let index = 0; index < text.length; index++) {
        const char = text[index]!
        if (inString) {
          if (escaped) escaped = false
          else if (char === '\\') escaped = true
          else if (char === '"') {
            inString = false
            if (depth === 0) return { length: index + 1, ended: true }
          }
        } else if (char === '"') {
          inString = true
          began = true
        } else if (char === '{' || char === '[') {
          depth++
          began = true
        } else if (char === '}' || char === ']') {
          // A bracket that nothing has opened is what follows a bare word or number.
          if (depth === 0) return { length: index, ended: true }
          depth--
          if (depth === 0) return { length: index + 1, ended: true }
        } else if (depth === 0 && began && /[\s,]/.test(char)) return { length: index, ended: true }
        else began = true
      }
      return { length: text.length, ended: false }
    },
  }
}
