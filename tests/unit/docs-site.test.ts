// The docs as a site: every page is there, is found from the navigation, and every link leads somewhere.
import assert from 'node:assert/strict'
import { existsSync, globSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import MiniSearch from 'minisearch'
import { root } from '../../lib/root.ts'
import { readClientMethods } from '../../web/docs-plugin/client-methods.ts'
import { createSlugs, renderMarkdown } from '../../web/docs-plugin/markdown.ts'
import { searchIndex } from '../../web/docs-plugin/search.ts'
import { readSite } from '../../web/docs-plugin/site.ts'
import { type Found, searchOptions } from '../../web/lib/docs-search.ts'
import { contractRoutes } from '../support/routes.ts'

const site = readSite(root)
const plainly = { link: (href: string) => href, image: (src: string) => ({ src, width: 1, height: 1 }) }

test('every link and anchor of the docs leads somewhere, also to files that the site does not show', () => {
  assert.deepEqual(site.broken, [])
  assert.deepEqual(
    [...site.named].filter((file) => !existsSync(path.join(root, file))),
    [],
  )
})

test('every link of the README leads to a file', () => {
  const text = readFileSync(path.join(root, 'README.md'), 'utf8')
  const links = [...text.matchAll(/\]\(([^)#]+)/g)].map(([, link]) => link!).filter((link) => !/^https?:/.test(link))
  assert.ok(links.length > 20)
  assert.deepEqual(
    links.filter((link) => !existsSync(path.join(root, link))),
    [],
  )
})

test('every page is in the navigation once', () => {
  const inNavigation = site.groups.flatMap(({ pages }) => pages.map(({ slug }) => slug))
  assert.deepEqual(inNavigation.toSorted(), [...new Set(inNavigation)].sort(), 'none twice')
  const pages = site.pages.map(({ slug }) => slug).filter((slug) => slug !== 'overview')
  assert.deepEqual(inNavigation.toSorted(), pages.sort())
})

test('a reader has at most 49 pages beside the decisions, and none written by hand is over 250 lines', () => {
  const pages = globSync('docs/**/*.md', { cwd: root }).filter((file) => !file.startsWith('docs/decisions/'))
  assert.ok(pages.length <= 49, `${pages.length} pages: merge two of one topic`)
  for (const file of pages) {
    const text = readFileSync(path.join(root, file), 'utf8')
    const lines = text.split('\n').length - 1
    if (!text.startsWith('<!-- Written by')) assert.ok(lines <= 250, `${file} has ${lines} lines`)
  }
})

test('every file of the project that a page names is there', () => {
  const folders = readdirSync(root, { withFileTypes: true }).filter((entry) => entry.isDirectory())
  const named = site.pages
    .filter(({ file }) => file !== 'CHANGELOG.md')
    .flatMap(({ file }) =>
      [...readFileSync(path.join(root, file), 'utf8').matchAll(/`([a-z][\w-]*)\/([\w./-]*)`/g)].map(
        ([, folder = '', rest = '']) => ({ file, folder, name: `${folder}/${rest}` }),
      ),
    )
    // A name with a part in capitals stands for many: web/pages/NAME/index.tsx.
    .filter(({ folder, name }) => folders.some((entry) => entry.name === folder) && !/\/[A-Z]{4}/.test(name))
  assert.ok(named.length > 200)
  const missing = named.filter(({ name }) => !existsSync(path.join(root, name)))
  assert.deepEqual(
    missing.map(({ file, name }) => `${file}: ${name}`),
    [],
  )
})

test('every page that the code names is there, in comments, messages and links of the dashboard', () => {
  const sources = globSync('{bench,cli,contract,deploy,engine,lib,mcp,pictures,scripts,sdk,server,trainer,web}/**/*', {
    cwd: root,
    exclude: (name) => name === 'node_modules',
  }).filter((file) => /\.(ts|tsx|mjs|py|ya?ml|cpp|h|json)$/.test(file))
  const slugs = new Set(['api', 'overview', ...site.pages.map(({ slug }) => slug)])
  const missing = sources.flatMap((file) => {
    const text = readFileSync(path.join(root, file), 'utf8')
    const files = [...text.matchAll(/\bdocs\/[\w/-]+\.md\b/g)].filter(([name]) => !existsSync(path.join(root, name)))
    const links = [...text.matchAll(/["'`]\/docs\/([\w/-]*\w)(?=["'`#])/g)].filter(([, slug]) => !slugs.has(slug!))
    return [...files, ...links].map(([name]) => `${file}: ${name}`)
  })
  assert.ok(sources.length > 500)
  assert.deepEqual(missing, [])
})

test('there is a guide for every task', () => {
  const guides = site.groups.flatMap(({ pages }) => pages.map(({ slug }) => slug))
  const tasks = [
    ...['start', 'prepare-data', 'choose-a-method', 'read-the-curves', 'evaluations', 'deploy', 'limits-and-usage'],
    ...['receive-webhooks', 'export', 'operate', 'scale', 'dashboard', 'command-line', 'assistants', 'client-library'],
  ]
  for (const task of tasks) assert.ok(guides.includes(`guides/${task}`), task)
})

test('no title is there twice, and no heading twice on a page', () => {
  const twice = (texts: string[]) => texts.filter((text, index) => texts.indexOf(text) !== index)
  assert.deepEqual(twice(site.pages.map(({ title }) => title)), [])
  for (const { file, headings } of site.pages) assert.deepEqual(twice(headings.map(({ text }) => text)), [], file)
})

test('a page has no inline style and no script, whatever its text says', () => {
  const { html } = renderMarkdown(
    '# A <b>title</b>\n\n<script>alert(1)</script> [a](javascript:alert(1)) `<img onerror=x>`\n\n' +
      '| a | b |\n|:-:|--:|\n| 1 | 2 |\n\n```js\nconst a = "</code><script>"\n```\n',
    plainly,
  )
  assert.doesNotMatch(html, /<script|<b>|<img|style=|href="javascript/)
  assert.match(html, /<td class="center">1<\/td>/)
  assert.match(html, /class="hljs-keyword">const</)
  for (const page of site.pages) assert.doesNotMatch(page.html, / style=|<script|&lt;!--/, page.file)
})

test('anchors are those of GitHub', () => {
  const slug = createSlugs()
  assert.deepEqual(['The first start', 'What `a` is, and why?', 'The first start', 'Ärger: 50 %'].map(slug), [
    'the-first-start',
    'what-a-is-and-why',
    'the-first-start-1',
    'ärger-50-',
  ])
})

test('a link to a missing page, anchor or picture is found', () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-docs-'))
  try {
    mkdirSync(path.join(folder, 'docs/guides'), { recursive: true })
    writeFileSync(path.join(folder, 'docs/README.md'), '# Docs\n\n## Guides\n\n- [One](guides/one.md)\n')
    writeFileSync(
      path.join(folder, 'docs/guides/one.md'),
      '# One\n\n## Part\n\n[a](two.md) [b](#part) [c](#parts) [d](../README.md#guides) [e](../../lib/x.ts) ' +
        '![f](f.png)\n',
    )
    const { broken, named, groups } = readSite(folder)
    assert.deepEqual(broken, [
      'docs/guides/one.md: two.md',
      'docs/guides/one.md: f.png',
      'docs/guides/one.md: docs/guides/one.md#parts',
    ])
    assert.deepEqual([...named], ['lib/x.ts'])
    assert.deepEqual(groups, [{ title: 'Guides', pages: [{ slug: 'guides/one', title: 'One' }] }])
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test('the search finds tasks, settings and error codes, the best first', () => {
  const index = MiniSearch.loadJSON<Found>(searchIndex(site.pages), searchOptions)
  const best = (text: string) => index.search(text).map(({ id }) => String(id))
  assert.equal(best('deploy')[0], 'guides/deploy')
  assert.equal(best('read curves')[0], 'guides/read-the-curves')
  assert.match(best('rate limit')[0]!, /^guides\/limits-and-usage/)
  assert.ok(best('TUNERY_PORT').some((id) => id.startsWith('reference/settings')))
  assert.ok(best('storage_full').some((id) => id.startsWith('errors')))
  assert.ok(best('early stoping').length > 0, 'a letter is missing')
  assert.deepEqual(best('xyzzyplugh'), [])
})

test('the API reference knows the client library’s method of every operation', async () => {
  const methods = readClientMethods(root)
  for (const { method, path: route } of await contractRoutes()) {
    const documented = methods[`${method} ${route.replace('*}', '}')}`]
    assert.ok(documented, `${method} ${route}`)
    assert.match(documented.name, /^[a-z][\w.]+$/i)
  }
})
