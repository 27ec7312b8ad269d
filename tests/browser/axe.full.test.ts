// Every page of the dashboard with something on it, and what opens above them: nothing serious for axe, light and dark,
// at a desk and on a phone; no page is wider than its window.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { Page } from 'playwright-core'
import { type Furniture, furnish, furnishable } from './furnish.ts'
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
let furniture: Furniture
before(async () => {
  if (browserTest.skip) return
  service = await startBrowserService('axe', furnishable)
  furniture = await furnish(service)
})
after(() => service?.stop())

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
      const addresses = Object.values(furniture.pages)
      const found = await look(visit, addresses, size.width)
      const open = ['/sign-in', furniture.invitation, furniture.share, '/share']
      found.push(...(await look(visitor, open, size.width)))
      assert.deepEqual(found, [])
      t.diagnostic(`${addresses.length + open.length} pages`)
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
