// Incremental scanner for the end of a JSON value in streamed text.

export interface JsonScan {
  /** Scans the next text. Returns how many of its characters belong to the value, and whether the value ends there. */
  scan(text: string): { length: number; ended: boolean }
}

/** Matches brackets and quotes only; does not validate the JSON. */
export function createJsonScan(): JsonScan {
  let depth = 0
  let started = false
  let inString = false
  let escaped = false

  return {
    scan(text) {
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
          started = true
        } else if (char === '{' || char === '[') {
          depth++
          started = true
        } else if (char === '}' || char === ']') {
          // An unopened bracket ends a bare word or number.
          if (depth === 0) return { length: index, ended: true }
          depth--
          if (depth === 0) return { length: index + 1, ended: true }
        } else if (depth === 0 && started && /[\s,]/.test(char)) return { length: index, ended: true }
        else started = true
      }
      return { length: text.length, ended: false }
    },
  }
}
