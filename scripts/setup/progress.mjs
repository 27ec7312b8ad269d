// What set-up says while it works: lines on the terminal, or events as JSON lines for the server that started it.

let asEvents = false

/** From now on prints events instead of lines. */
export function printEvents() {
  asEvents = true
}

/** Prints a line for people. */
export function print(text) {
  if (!asEvents) console.log(`${process.stdout.isTTY ? '\r\x1b[K' : ''}${text}`)
}

/** Shows the latest line of a command in place; replaced by the next one. On a terminal only. */
export function showInPlace(text) {
  if (asEvents) reportOutput(text)
  else if (process.stdout.isTTY) process.stdout.write(`\r\x1b[K  ${text.slice(0, (process.stdout.columns ?? 80) - 4)}`)
}

/** Clears what `showInPlace` has shown. */
export function clearInPlace() {
  if (!asEvents && process.stdout.isTTY) process.stdout.write('\r\x1b[K')
}

/**
 * Prints an event for the server: `{name, title, status, message, hint}` of a step, or without a name of set-up
 * itself.
 * Nothing if people read the output.
 */
export function report(event) {
  if (asEvents) console.log(JSON.stringify(event))
}

const outputInterval_ms = 1000
let reported_at = 0

function reportOutput(text) {
  if (Date.now() - reported_at < outputInterval_ms) return
  reported_at = Date.now()
  report({ message: text.slice(0, 300) })
}
