// Every way into the dashboard, as people go it: the first link, a password, a passkey, an invitation.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Page } from 'playwright-core'
import { browserService, browserTest, heading, phone, problemsOf, settled } from './support.ts'

const { service } = browserService('sign-in', {}, { signIn: false })

const email = 'ada@example.com'
const password = 'a sentence that is long enough'
/** Passkeys belong to a name, not to an address in numbers. */
const localhost = () => service.address.replace('127.0.0.1', 'localhost')

async function signOut(page: Page): Promise<void> {
  await page.getByRole('button', { name: /Ada|Grace|Owner/ }).click()
  await page.getByRole('menuitem', { name: 'Sign out' }).click()
  await heading(page, 'Sign in')
}

test('before anybody has signed in, the page says where the link is', browserTest, async () => {
  const { page, complaints } = await service.visit({ signedIn: false })
  await page.goto('/jobs')
  await heading(page, 'Sign in')
  await page.getByText('Nobody has signed in yet').waitFor()
  assert.deepEqual(await problemsOf(page), [])
  assert.ok(!complaints.some((complaint) => !complaint.includes('401')), complaints.join('\n'))
})

test('the first link signs in once, leaves the address, and leads to a password', browserTest, async () => {
  const { page } = await service.visit({ signedIn: false })
  // A look at the session that is answered after the sign-in, for the time before it, changes nothing.
  const signedIn = page.waitForResponse('**/v1/sign-in/link')
  let looks = 0
  await page.route('**/v1/session', async (route) => {
    if (looks++ > 0) return route.continue()
    const response = await route.fetch()
    await signedIn
    // The page may have given it up.
    await route.fulfill({ response }).catch(() => undefined)
  })
  await page.goto(service.link)
  await heading(page, 'Welcome to Tunery')
  const token = service.link.split('#')[1]!
  assert.ok(!page.url().includes(token))
  assert.ok(!(await page.evaluate(() => JSON.stringify({ ...sessionStorage, ...localStorage }))).includes(token))
  assert.deepEqual(await problemsOf(page), [])
  await page.getByLabel('Name').fill('Ada Lovelace')
  await page.getByLabel('Email').fill(email)
  await page.getByLabel('Password', { exact: true }).fill('short')
  await page.getByLabel('Email').focus()
  await page.getByText('It has 5 of 10 characters').waitFor()
  await page.getByLabel('Password', { exact: true }).fill(password)
  await page.getByRole('button', { name: 'Set password' }).click()
  await heading(page, 'Home')
  await page.getByRole('button', { name: /Ada Lovelace/ }).waitFor()

  const second = await service.visit({ signedIn: false })
  await second.page.goto(service.link)
  await second.page.getByText('The link did not work').waitFor()
  await second.page.getByLabel('Email').waitFor()
})

test(
  'a password leads to the page that was wanted; a wrong one says so and keeps what was typed',
  browserTest,
  async () => {
    const { page } = await service.visit({ signedIn: false, size: phone })
    await page.goto('/datasets')
    await heading(page, 'Sign in')
    await page.getByLabel('Email').fill(email)
    await page.getByLabel('Password').fill('another sentence that is wrong')
    await page.keyboard.press('Enter')
    await page.getByRole('alert').waitFor()
    assert.deepEqual(await problemsOf(page), [])
    assert.equal(await page.getByLabel('Email').inputValue(), email)
    await page.getByLabel('Password').fill(password)
    await page.keyboard.press('Enter')
    await heading(page, 'Datasets')
    // Somebody who is signed in has nothing to do there.
    await page.goto('/sign-in?next=//evil.example/')
    await heading(page, 'Home')
  },
)

test('a session that has ended elsewhere leads to the sign-in and back', browserTest, async () => {
  const { page } = await service.visit({ signedIn: false })
  await page.goto('/sign-in')
  await page.getByLabel('Email').fill(email)
  await page.getByLabel('Password').fill(password)
  await page.keyboard.press('Enter')
  await heading(page, 'Home')
  await settled(page)
  await page.goto('/?from=here')
  await settled(page)
  await page.context().clearCookies()
  // The next look at what runs is refused.
  await heading(page, 'Sign in')
  assert.equal(new URL(page.url()).searchParams.get('next'), '/?from=here')
  await page.getByLabel('Email').fill(email)
  await page.getByLabel('Password').fill(password)
  await page.keyboard.press('Enter')
  await heading(page, 'Home')
  assert.match(page.url(), /from=here/)
})

test('an invited member joins with a passkey, signs in with it, and sees what a member may', browserTest, async () => {
  const invited = await fetch(`${service.address}/v1/invitations`, {
    method: 'POST',
    headers: { authorization: `Bearer ${service.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'Grace <b>Hopper</b>', email: null, role: 'viewer' }),
  })
  assert.equal(invited.status, 201, await invited.clone().text())
  const { link } = (await invited.json()) as { link: string }
  const { page } = await service.visit({ signedIn: false, address: localhost() })
  const devtools = await page.context().newCDPSession(page)
  await devtools.send('WebAuthn.enable')
  await devtools.send('WebAuthn.addVirtualAuthenticator', {
    options: {
      protocol: 'ctap2',
      transport: 'internal',
      hasResidentKey: true,
      hasUserVerification: true,
      isUserVerified: true,
      automaticPresenceSimulation: true,
    },
  })
  await page.goto(link.replace('127.0.0.1', 'localhost'))
  await heading(page, 'Invitation')
  await page.getByText('Grace <b>Hopper</b>').waitFor()
  assert.deepEqual(await problemsOf(page), [])
  await page.getByRole('button', { name: 'Join' }).click()
  await heading(page, 'Welcome to Tunery')
  await page.getByLabel('Email').fill('grace@example.com')
  await page.getByRole('button', { name: 'Create a passkey' }).click()
  await heading(page, 'Home')
  // A viewer: nothing to start, and no operator.
  assert.equal(await page.getByRole('link', { name: 'New job' }).count(), 0)
  assert.equal(await page.getByRole('link', { name: 'Operator' }).count(), 0)
  await signOut(page)
  await page.getByRole('button', { name: 'Sign in with a passkey' }).click()
  await heading(page, 'Home')
  await page.getByRole('button', { name: /Grace <b>Hopper/ }).waitFor()
})
