// `npm run coverage`: lines of the program that no test of `npm run test:full` runs, in any process that the tests
// start; `-- FILE…` of these test files alone, `-- --add FILE…` of these and of the runs before. A process that SIGKILL
// ends leaves no record. The report begins with the longest gaps, and names all lines.
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, globSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import path from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

interface Recorded {
  result: { url: string; functions: { ranges: { startOffset: number; endOffset: number; count: number }[] }[] }[]
}

const root = path.resolve(import.meta.dirname, '..')
const folder = path.join(root, '.local/coverage')
const records = path.join(folder, 'node')
const peer = path.join(root, '.local/peers/coverage')
const report = path.join(folder, 'report.txt')
const gapsShown = 40
/** What has run so far, for `--add`. */
const earlier = path.join(folder, 'ran.json')
const sources = globSync('{contract,lib,pictures,telemetry,sdk,mcp,server,engine,cli}/**/*.ts', { cwd: root }).filter(
  (file) => !file.startsWith('sdk/generated/'),
)
/** Which characters of each file have run: Node strips types in place, so that positions stay. */
const ran = new Map(sources.map((file) => [file, new Uint8Array(readFileSync(path.join(root, file), 'utf8').length)]))

/** A file's hash, and which of its characters have run, in base64. */
type Earlier = Record<string, { hash: string; ran: string }>

const hashOf = (file: string) =>
  createHash('sha256')
    .update(readFileSync(path.join(root, file)))
    .digest('hex')

/** Adds the earlier runs, but for files that have changed since: their positions are others. */
function addEarlier(): void {
  const known: Earlier = JSON.parse(readFileSync(earlier, 'utf8'))
  for (const [file, all] of ran) {
    const entry = known[file]
    if (entry?.hash === hashOf(file)) all.set(Buffer.from(entry.ran, 'base64'))
    else console.log(`${file} has changed since the runs before: they do not count for it`)
  }
}

function writeEarlier(): void {
  const entries = [...ran].map(([file, all]) => [
    file,
    { hash: hashOf(file), ran: Buffer.from(all).toString('base64') },
  ])
  writeFileSync(earlier, JSON.stringify(Object.fromEntries(entries)))
}

/** Adds the records of processes that have ended, and deletes them: all together are gigabytes. */
function addRecords(): void {
  for (const name of readdirSync(records)) {
    const file = path.join(records, name)
    let recorded: Recorded
    try {
      recorded = JSON.parse(readFileSync(file, 'utf8'))
    } catch {
      // Its process still writes it, or was killed while it did.
      continue
    }
    for (const { url, functions } of recorded.result) {
      const all = url.startsWith(pathToFileURL(root).href) && ran.get(path.relative(root, fileURLToPath(url)))
      if (!all) continue
      const here = new Uint8Array(all.length)
      // From the outside in: the innermost range of a character says how often it ran.
      const ranges = functions.flatMap((one) => one.ranges)
      ranges.sort((a, b) => a.startOffset - b.startOffset || b.endOffset - a.endOffset)
      for (const { startOffset, endOffset, count } of ranges) here.fill(count > 0 ? 1 : 0, startOffset, endOffset)
      for (let index = 0; index < all.length; index++) all[index]! |= here[index]!
    }
    rmSync(file)
  }
}

interface Gap {
  file: string
  from: number
  to: number
  /** Lines with something to run. */
  lines: number
}

/** Numbers of the lines that have something to run, and never did, and the runs of such lines. */
function missedLines(file: string): { lines: number; missed: number[]; gaps: Gap[] } {
  const all = ran.get(file)!
  // Types leave blanks.
  const text = stripTypeScriptTypes(readFileSync(path.join(root, file), 'utf8'))
  const missed: number[] = []
  const gaps: Gap[] = []
  let gap: Gap | undefined
  let [lines, offset] = [0, 0]
  for (const [index, line] of text.split('\n').entries()) {
    // Comments and closing brackets run nothing.
    if (/^\s*[^\s/*)\]}]/.test(line)) {
      lines++
      const from = offset + line.search(/\S/)
      if (all.subarray(from, offset + line.length).includes(1)) gap = undefined
      else {
        missed.push(index + 1)
        gap ??= gaps[gaps.push({ file, from: index + 1, to: 0, lines: 0 }) - 1]!
        gap.to = index + 1
        gap.lines++
      }
    }
    offset += line.length + 1
  }
  return { lines, missed, gaps }
}

/** `3-5, 9` of 3, 4, 5 and 9. */
function spans(numbers: number[]): string {
  const starts = numbers.filter((number, index) => number - 1 !== numbers[index - 1])
  const ends = numbers.filter((number, index) => number + 1 !== numbers[index + 1])
  return starts.map((start, index) => (start === ends[index] ? start : `${start}-${ends[index]}`)).join(', ')
}

function runPython(...args: string[]): string {
  const { stdout, stderr } = spawnSync(path.join(peer, 'bin/coverage'), args, { cwd: folder, encoding: 'utf8' })
  // Without the peer, as where only this script was started, there is neither.
  return `${stdout ?? ''}${stderr ?? ''}`
}

const words = process.argv.slice(2)
const named = words.filter((word) => word !== '--add')
const unknown = named.find((word) => word.startsWith('-'))
if (unknown) {
  console.error(`There is no option '${unknown}'.`)
  process.exit(2)
}
if (words.includes('--add') && existsSync(earlier)) addEarlier()
else rmSync(folder, { recursive: true, force: true })
rmSync(records, { recursive: true, force: true })
for (const name of [records, path.join(folder, 'site')]) mkdirSync(name, { recursive: true })
writeFileSync(path.join(folder, 'site/sitecustomize.py'), 'import coverage\n\ncoverage.process_startup()\n')
const settings = path.join(folder, '.coveragerc')
writeFileSync(
  settings,
  `[run]\nparallel = true\nsigterm = true\npatch = _exit\ndata_file = ${folder}/.coverage\n` +
    `source = ${root}/trainer\nomit = */tests/*\n`,
)
const packages = globSync(path.join(peer, 'lib/python*/site-packages'))
const tests = spawn(process.execPath, ['scripts/test.ts', ...(named.length > 0 ? named : ['--full'])], {
  cwd: root,
  stdio: 'inherit',
  env: {
    ...process.env,
    NODE_V8_COVERAGE: records,
    COVERAGE_PROCESS_START: settings,
    PYTHONPATH: [path.join(folder, 'site'), ...packages].join(path.delimiter),
  },
})
// The report is then of what has run so far.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => tests.kill(signal))
const adding = setInterval(addRecords, 5_000)
const status = await new Promise<number | null>((resolve) => tests.on('close', resolve))
clearInterval(adding)
addRecords()
writeEarlier()

const files = sources.map((file) => ({
  file,
  room: file.split('/').slice(0, -1).slice(0, 3).join('/'),
  ...missedLines(file),
}))
const shareOf = (some: typeof files) => {
  const lines = some.reduce((sum, one) => sum + one.lines, 0)
  return lines === 0 ? 100 : (100 * (lines - some.reduce((sum, one) => sum + one.missed.length, 0))) / lines
}
const rooms = Object.entries(Object.groupBy(files, ({ room }) => room)).map(([room, some]) => ({
  room,
  share: shareOf(some!),
}))
rooms.sort((a, b) => a.share - b.share)
runPython('combine', '--append', '--rcfile', settings)
const python = runPython('report', '--rcfile', settings, '--show-missing', '--skip-covered')
const largest = files
  .flatMap(({ gaps }) => gaps)
  .sort((a, b) => b.lines - a.lines)
  .slice(0, gapsShown)
  .map(({ file, from, to, lines }) => `${String(lines).padStart(6)}    ${file}:${from}-${to}`)
const missed = files.filter((one) => one.missed.length > 0).map((one) => `${one.file}: ${spans(one.missed)}`)
writeFileSync(report, `The longest gaps, in lines:\n${largest.join('\n')}\n\n${missed.join('\n')}\n\n${python}`)
for (const { room, share } of rooms) console.log(`${share.toFixed(1).padStart(6)} %  ${room}`)
console.log(`${shareOf(files).toFixed(1).padStart(6)} %  all TypeScript but the dashboard`)
console.log(python.match(/^TOTAL.*$/m)?.[0] ?? python)
console.log(`The lines are in ${path.relative(root, report)}.`)
process.exit(status ?? 1)
