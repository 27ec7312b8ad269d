// What the docs tell people to type: commands and options that exist, requests that the API takes.
import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import type { z } from 'zod'
import { root } from '../../lib/root.ts'
import { codeBlocks, order, pages, shownElsewhere } from '../support/guide-blocks.ts'
import { contractRoutes } from '../support/routes.ts'

const files = ['README.md', 'SECURITY.md', ...globSync('docs/**/*.md', { cwd: root })].filter(
  (file) => !file.includes('reference/'),
)
/** Commands of the blocks of shell code, each in one line. */
const commands = files.flatMap((file) =>
  [...readFileSync(path.join(root, file), 'utf8').matchAll(/```sh\n([\s\S]*?)```/g)].flatMap(([, block]) =>
    block!
      .replace(/\\\n\s*/g, ' ')
      // A body over several lines is one word.
      .replace(/'[^']*'/g, (quoted) => quoted.replace(/\s*\n\s*/g, ' '))
      .split('\n')
      .map((line) => ({ file, line: line.trim() })),
  ),
)

const reference = readFileSync(path.join(root, 'docs/reference/cli.md'), 'utf8')
const shared = /## Options of all commands([\s\S]*?)## Commands/.exec(reference)![1]!
/** The part of the reference of each command, by its words. */
const byName = new Map(
  reference
    .split(/^#{3,4} /m)
    .slice(1)
    .map((part) => [/^`\.\/tunery ([a-z\- ]+)/.exec(part)?.[1]?.trim() ?? '', part]),
)

test('every ./tunery command of the docs exists, with the options that it is given', () => {
  const calls = commands.flatMap(({ file, line }) =>
    [...line.matchAll(/\.\/tunery ([^|#$&)]+)/g)].map(([, words]) => ({ file, words: words!.trim() })),
  )
  assert.ok(calls.length > 40, `${calls.length} found`)
  for (const { file, words } of calls) {
    const [first = '', second = ''] = words.split(/\s+/)
    const part = byName.get(`${first} ${second}`) ?? byName.get(first)
    // A group by itself is its list.
    const isGroup = [...byName.keys()].some((name) => name.startsWith(`${first} `))
    assert.ok(part || isGroup, `${file}: ./tunery ${words}`)
    const group = [...byName].filter(([name]) => name.startsWith(`${first} `)).map(([, each]) => each)
    for (const [, option] of words.matchAll(/\s(--[a-z-]+)/g))
      assert.ok(
        [part ?? '', shared, ...(byName.get(`${first} ${second}`) ? [] : group)].some((text) => text.includes(option!)),
        `${file}: ${option} of ./tunery ${words}`,
      )
  }
})

test('every request of the docs goes to a route that exists, with a body that it takes', async () => {
  const routes = (await contractRoutes()).map((route) => ({
    route,
    pattern: new RegExp(`^${route.path.replace(/\{\w+\*\}/g, '.+').replace(/\{\w+\}/g, '[^/]+')}/?$`),
  }))
  const requests = commands.filter(({ line }) => /^curl .*\$(TUNERY|URL)\//.test(line))
  assert.ok(requests.length > 30, `${requests.length} found`)
  let bodies = 0
  for (const { file, line } of requests) {
    const address = /\$(?:TUNERY|URL)([^\s"'?]+)/.exec(line)![1]!
    const body = / (?:-d|--data) '(\{.*\})'/.exec(line)?.[1]
    const method = / -X (\w+)/.exec(line)?.[1] ?? (body || / -F /.test(line) ? 'POST' : 'GET')
    const match = routes.find(({ route, pattern }) => route.method === method && pattern.test(address))
    assert.ok(match, `${file}: ${method} ${address}`)
    if (!body || !match.route.body) continue
    bodies++
    const { error } = (match.route.body as z.ZodType).safeParse(JSON.parse(body))
    assert.equal(error, undefined, `${file}: ${line}`)
  }
  assert.ok(bodies > 10, `${bodies} bodies`)
})

test('every block of code in README and guides is run by a test', () => {
  for (const page of pages)
    for (const { code, line } of codeBlocks(page)) {
      const elsewhere = shownElsewhere(page, code)
      assert.ok(elsewhere ?? order.includes(page), `${page}:${line}`)
      for (const [file] of elsewhere?.matchAll(/tests\/[\w./-]+/g) ?? [])
        assert.ok(existsSync(path.join(root, file)), `${page}:${line} names ${file}`)
    }
})
