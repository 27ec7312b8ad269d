// The first page of the dashboard stays small: what a browser loads until home is there, compressed by gzip.
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { root } from '../../../lib/root.ts'

const most_kB = 250
const built = path.join(root, '.local/web')

interface Chunk {
  file: string
  css?: string[]
  imports?: string[]
  isEntry?: boolean
  src?: string
}
const chunks: Record<string, Chunk> = JSON.parse(readFileSync(path.join(built, 'manifest.json'), 'utf8'))

/** The files of a chunk and of all that it imports at once. */
function filesOf(name: string, files = new Set<string>()): Set<string> {
  const { file, css = [], imports = [] } = chunks[name]!
  if (files.has(file)) return files
  for (const name of [file, ...css]) files.add(name)
  for (const module of imports) filesOf(module, files)
  return files
}
const kB = (file: string) => gzipSync(readFileSync(path.join(built, file)), { level: 9 }).length / 1000
const sum = (files: Iterable<string>) => [...files].reduce((total, file) => total + kB(file), 0)

const entry = Object.keys(chunks).find((name) => chunks[name]!.isEntry)!
const pages = Object.keys(chunks).filter((name) => /^pages\/[^/]+\/index\.tsx$/.test(name))

test(`the first page is at most ${most_kB} kB, and no library of a later page is in it`, (t) => {
  const first = filesOf(entry)
  first.add('index.html').add('theme.js')
  const home = filesOf('pages/home/index.tsx', new Set(first))
  for (const file of home) t.diagnostic(`${kB(file).toFixed(1)} kB  ${file}`)
  t.diagnostic(`first page: ${sum(home).toFixed(1)} kB of ${most_kB}`)
  assert.ok(sum(home) <= most_kB, `the first page has ${sum(home).toFixed(1)} kB`)
  const text = [...home].map((file) => readFileSync(path.join(built, file), 'utf8')).join('')
  assert.ok(!text.includes('u-over'), 'uPlot belongs to pages with curves')
})

test('every page is a separate file', (t) => {
  assert.ok(pages.length >= 20)
  const first = filesOf(entry)
  for (const page of pages) {
    assert.ok(!first.has(chunks[page]!.file), `${page} is in the first page`)
    const added = [...filesOf(page, new Set())].filter((file) => !first.has(file))
    t.diagnostic(`${sum(added).toFixed(1)} kB more  ${page}`)
    assert.ok(sum(added) <= most_kB, page)
  }
})

test('the build has no source maps, and compressed forms of all that is large', () => {
  const files = readdirSync(built, { recursive: true, encoding: 'utf8' })
  assert.deepEqual(
    files.filter((file) => file.endsWith('.map')),
    [],
  )
  const script = chunks[entry]!.file
  assert.ok(files.includes(`${script}.br`) && files.includes(`${script}.gz`))
})
