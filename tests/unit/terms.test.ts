// One list of terms (docs/glossary.md, "What people read"): the words that it replaced do not come back where people
// read.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'

const replaced = [
  /nothing runs/i,
  /strangest rows/i,
  /longest answer/i,
  /does not scale/i,
  /answered by <code>/i,
  /none was asked for/i,
  /what got worse/i,
  /what it takes/i,
  /what serves it/i,
  /make the link/i,
  /nats a token/i,
  /goes on without/i,
  /yes, cancel/i,
  /of your role|for your role/i,
  /was not (started|cancelled|paused|resumed|renamed|changed)'/i,
]

/** Expressions of our own, for "again", "in progress", "continues", "anyone who" and "is notified". */
const dialect = /\banew\b|\bunder way\b|\bgo(es)? on\b|\bwent on\b|\bgoing on\b|\bwhoever\b|\b(is|are) told\b/i

/** The texts of a source file: what is not a comment. */
const textsOf = (source: string) => source.replace(/^\s*(\/\/|\*|\/\*).*$/gm, '').replace(/\{\/\*.*?\*\/\}/gs, '')

test('the dashboard and the command line say what the glossary says', () => {
  const files = globSync('{web/{pages,parts,shell,ui},cli/{remote,support}}/**/*.{ts,tsx}', { cwd: root })
  assert.ok(files.length > 100)
  const found = files.flatMap((file) => {
    const text = textsOf(readFileSync(path.join(root, file), 'utf8'))
    return replaced.flatMap((word) => (word.test(text) ? [`${file}: ${word.exec(text)![0]}`] : []))
  })
  assert.deepEqual(found, [])
})

test('the first pages of the docs do too', () => {
  for (const file of ['README.md', 'docs/README.md', 'docs/guides/start.md', 'docs/guides/dashboard.md']) {
    const text = readFileSync(path.join(root, file), 'utf8')
    for (const word of replaced) assert.doesNotMatch(text, word, file)
  }
})

test('every page, and every text of the API, the commands and the assistants, says it in plain words', () => {
  const pages = globSync('{,*/,deploy/**/}{README,CONTRIBUTING,SECURITY}.md', {
    cwd: root,
    exclude: ['node_modules/**'],
  })
  const guides = globSync('docs/**/*.md', { cwd: root, exclude: ['docs/decisions/**', 'docs/glossary.md'] })
  const texts = globSync('{cli,contract,engine,mcp,server,web}/**/*.{ts,tsx}', { cwd: root })
  assert.ok(pages.length > 8 && guides.length > 30 && texts.length > 200)
  const found = [...pages, ...guides, ...texts].flatMap((file) => {
    const source = readFileSync(path.join(root, file), 'utf8')
    const word = dialect.exec(file.endsWith('.md') ? source : textsOf(source))
    return word ? [`${file}: ${word[0]}`] : []
  })
  assert.deepEqual(found, [])
})

test('a button that changes nothing is not called Cancel beside one that cancels', () => {
  for (const file of globSync('web/**/*.tsx', { cwd: root })) {
    const source = readFileSync(path.join(root, file), 'utf8')
    for (const [dialog] of source.matchAll(/<ConfirmDialog.*?onConfirm/gs))
      if (/action=(\{[^}]*)?["']Cancel /.test(dialog)) assert.match(dialog, /keep=/, `${file}: ${dialog}`)
  }
})
