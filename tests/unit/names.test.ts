// Names display as they are in lists, logs and terminals.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import { readName } from '../../cli/local/names.ts'
import { UsageError } from '../../cli/support/errors.ts'
import { asDisplayName, Description, DisplayName } from '../../contract/common.ts'
import { contractRoutes } from '../support/routes.ts'

const refusedInNames = [
  '\u0000',
  'a\u0007',
  'a\tb',
  'a\nb',
  'a\u001b[31m',
  '\u007f',
  'a\u0085',
  '\ud83d',
  '\ude00',
  '\u202ename',
  'a\u2066b',
  'a\u2069',
]
const acceptedNames = ['Ab', 'Grüße 😀', '名前', 'א\u200fב', 'a\u200db', 'x'.repeat(200)]

test('names reject control characters, lone surrogates, direction overrides, not letters of any script', () => {
  for (const name of refusedInNames) {
    const { error } = DisplayName.safeParse(`x${name}x`)
    assert.match(error!.issues[0]!.message, /^has the character U\+[0-9A-F]{4}\. Leave out/, JSON.stringify(name))
  }
  assert.match(DisplayName.safeParse('a\u202eb').error!.issues[0]!.message, /U\+202E/)
  for (const name of acceptedNames) assert.equal(DisplayName.parse(` ${name} `), name)
  assert.ok(DisplayName.safeParse('  ').error)
  assert.throws(
    () => readName('a\u202eb', ''),
    new UsageError(
      '--name: has the character U+202E. Leave out control characters, lone surrogates and direction overrides.',
    ),
  )
})

test('descriptions may have line breaks and tabs, but no other control characters', () => {
  assert.equal(Description.parse('a\n\tb\r\nc'), 'a\n\tb\r\nc')
  for (const text of refusedInNames.filter((refused) => !/[\t\n]/.test(refused)))
    assert.ok(Description.safeParse(`x${text}x`).error, JSON.stringify(text))
})

test('every name and description in a request has these limits', async () => {
  const names: string[] = []
  // What a model reads, as in chat completions.
  const read = ['tools', 'response_format']
  const walk = (schema: unknown, where: string): void => {
    if (typeof schema !== 'object' || schema === null) return
    for (const [name, part] of Object.entries((schema as { properties?: object }).properties ?? {})) {
      if (read.includes(name)) continue
      if (/(^|_)name$|^description$/.test(name) && part.type === 'string') {
        names.push(`${where}.${name}`)
        assert.ok(part.pattern, `${where}.${name}`)
        assert.ok(!new RegExp(part.pattern, 'u').test('a\u202eb'), `${where}.${name}`)
        assert.ok(!new RegExp(part.pattern, 'u').test('a\u0000b'), `${where}.${name}`)
      }
      walk(part, `${where}.${name}`)
    }
    for (const [key, part] of Object.entries(schema))
      if (typeof part === 'object' && !read.includes(key))
        walk(Array.isArray(part) ? Object.assign({}, part) : part, where)
  }
  for (const { path, method, body, form, openai } of await contractRoutes())
    for (const schema of [body, form])
      if (schema && !openai) walk(z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }), `${method} ${path}`)
  for (const name of [
    'POST /datasets/.name',
    'POST /datasets/.description',
    'POST /keys.name',
    'POST /operator/accounts.owner.name',
    'POST /deployments.name',
  ])
    assert.ok(names.includes(name), `${name} of ${names.join(', ')}`)
})

test('a file name becomes a valid name: forbidden characters are removed, and no character is split', () => {
  assert.equal(asDisplayName(' a\u202eb\u0000.csv\n'), 'ab.csv')
  assert.equal(asDisplayName('\u0000'), '')
  for (const name of [`${'x'.repeat(199)}😀.csv`, `${'x'.repeat(199)} y`, ...refusedInNames]) {
    const accepted = asDisplayName(name)
    if (accepted) assert.equal(DisplayName.parse(accepted), accepted)
  }
})
