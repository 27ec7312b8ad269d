// Every page of the dashboard with something on it, and what opens above them: nothing serious for axe, light and dark,
// at a desk and on a phone; no page is wider than its window.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Page } from 'playwright-core'
import { Tunery } from '../../sdk/index.ts'
import { tiny } from '../support/tiny.ts'
import { type Furniture, furnish } from './furnish.ts'
import {
  type BrowserService,
  browserTest,
  desktop,
  phone,
  problemsOf,
  settled,
  startBrowserService,
  type Visit,
} from './support.ts'

let service: BrowserService
let furniture: Furniture & { addresses: string[]; invitation: string }
before(async () => {
  if (browserTest.skip) return
  service = await startBrowserService('axe')
  furniture = await furnishMore()
})
after(() => service?.stop())

/** What an account has after its first week, and the address of each page of it. */
async function furnishMore() {
  const made = await furnish(service)
  const tunery = new Tunery({ baseUrl: `${service.address}/v1`, apiKey: service.key })
  const evaluation = await tunery.evaluations.create({
    model: made.job.model!,
    baseline: tiny,
    dataset: made.dataset.id,
    graders: [{ type: 'regex', name: 'words', pattern: '\\w' }],
    rows: 6,
    sampling: { max_tokens: 8 },
  })
  const rows = [
    '{"messages":[{"role":"user","content":"no answer"}]}',
    '{"messages":',
    '{"prompt":"a","completion":"b"}',
  ]
  const broken = await tunery.datasets.upload(rows.join('\n'), { name: 'broken rows' })
  await tunery.exports.create({ model: made.job.model!, format: 'gguf' })
  await tunery.webhooks.create({ url: 'https://example.com/hooks/tunery', events: ['training.completed'] })
  const { link } = await tunery.invitations.create({ name: 'Grace', email: 'grace@example.com', role: 'member' })
  const dataset = `/datasets/${made.dataset.id}`
  const job = `/jobs/${made.job.id}`
  const addresses = [
    `/jobs/${made.running.id}`,
    '/',
    '/datasets',
    dataset,
    ...['problems', 'rows', 'tokens'].map((tab) => `${dataset}?tab=${tab}`),
    `/datasets/${broken.id}?tab=problems`,
    '/jobs',
    job,
    ...['samples', 'rows', 'checkpoints', 'log', 'config'].map((tab) => `${job}?tab=${tab}`),
    `/jobs/new?clone=${made.job.id}`,
    '/models',
    `/models/${made.job.model}`,
    '/evaluations',
    `/evaluations/${evaluation.id}`,
    '/deployments',
    '/deployments/tickets',
    '/exports',
    '/playground',
    ...['profile', 'keys', 'members', 'webhooks', 'usage', 'audit', 'sessions'].map((each) => `/settings/${each}`),
    ...['accounts', 'tiers', 'machine'].map((tab) => `/operator?tab=${tab}`),
    '/docs/api',
    '/docs/overview',
    '/nowhere/at/all',
    '/datasets/ds_nothing',
  ]
  return { ...made, addresses, invitation: link.replace(service.address, '') }
}

/** Complaints of a page that asks for what is not there are its purpose. */
const isAsked = (complaint: string) => /nothing|40[14]/.test(complaint)

async function look({ page, complaints }: Visit, addresses: string[], width: number): Promise<string[]> {
  const found: string[] = []
  for (const address of addresses) {
    await page.emulateMedia({ colorScheme: 'light' })
    await page.goto(address)
    await settled(page)
    const scrollWidth = await page.evaluate(() => document.documentElement.scrollWidth)
    if (scrollWidth > width) found.push(`${address} is ${scrollWidth} px wide, the window ${width} px`)
    found.push(...(await problemsInBothSchemes(page)).map((problem) => `${address} at ${width} px: ${problem}`))
  }
  return [...found, ...complaints.filter((each) => !isAsked(each))]
}

/** The dark look differs in colours alone: the rest is the same document. */
async function problemsInBothSchemes(page: Page): Promise<string[]> {
  const light = await problemsOf(page)
  await page.emulateMedia({ colorScheme: 'dark' })
  const dark = await problemsOf(page, { only: ['color-contrast'] })
  return [...light.map((each) => `light, ${each}`), ...dark.map((each) => `dark, ${each}`)]
}

for (const { name, size } of [
  { name: 'on a phone', size: phone },
  { name: 'at a desk', size: desktop },
])
  test(
    `axe finds nothing serious on any page ${name}, light and dark, and none is too wide`,
    browserTest,
    async (t) => {
      const visit = await service.visit({ size, reducedMotion: true })
      const visitor = await service.visit({ size, reducedMotion: true, signedIn: false })
      const found = await look(visit, furniture.addresses, size.width)
      found.push(...(await look(visitor, ['/sign-in', furniture.invitation, '/share/nothing'], size.width)))
      assert.deepEqual(found, [])
      t.diagnostic(`${furniture.addresses.length + 3} pages`)
    },
  )

test('nor on what opens above them', browserTest, async (t) => {
  const opened: [address: string, button: string][] = [
    ['/settings/keys', 'Create key'],
    ['/settings/webhooks', 'Add webhook'],
    ['/settings/webhooks', 'https://example.com/hooks/tunery'],
    ['/settings/members', 'Invite member'],
    ['/settings/audit', 'key.created'],
    ['/models', 'Import adapter'],
    ['/deployments', 'Deploy model'],
    ['/deployments/tickets', 'Switch model'],
    ['/evaluations', 'New evaluation'],
    ['/exports', 'Export a model'],
    ['/operator', 'Create account'],
    [`/jobs/${furniture.job.id}`, 'Deploy'],
    [`/models/${furniture.job.model}`, 'Deploy'],
    ['/playground', 'View code'],
  ]
  const { page, complaints } = await service.visit({ size: phone, reducedMotion: true })
  const found: string[] = []
  for (const [address, name] of opened) {
    await page.goto(address)
    await settled(page)
    await page.getByRole('main').getByRole('button', { name, exact: true }).first().click()
    await page.getByRole('dialog').waitFor()
    await settled(page)
    found.push(...(await problemsInBothSchemes(page)).map((problem) => `${address}, ${name}: ${problem}`))
    await page.emulateMedia({ colorScheme: 'light' })
  }
  assert.deepEqual([...found, ...complaints], [])
  t.diagnostic(`${opened.length} dialogs`)
})
