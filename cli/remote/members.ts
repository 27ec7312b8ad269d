// `members`: the people of the account, and who signs in as them.
import { type GlobalOptions, type Program, runs } from '../support/options.ts'
import { show, showList } from '../support/output.ts'
import { connect } from '../support/service.ts'
import { time } from '../support/text.ts'
import { all } from './lists.ts'

export function addMemberCommands(program: Program): void {
  const members = program.command('members').description('the people of the account')
  runs(members.command('list').description('list the members, newest first'), listMembers)
  const member = ['<member>', 'id of the member'] as const
  runs(
    members
      .command('identities')
      .description('list who signs in as a member by the OpenID provider')
      .argument(...member),
    listIdentities,
  )
  runs(
    members
      .command('disconnect')
      .description('remove a connection to the OpenID provider, and end the sessions that it began')
      .argument(...member)
      .argument('<identity>', 'id of the connection'),
    removeIdentity,
  )
}

async function listMembers(options: GlobalOptions): Promise<void> {
  const members = await all(connect(options).tunery.members.list({ limit: 100 }))
  showList(
    options,
    members,
    [
      { head: 'id', value: ({ id }) => id },
      { head: 'name', value: ({ name }) => name, flexible: true },
      { head: 'email', value: ({ email }) => email ?? '' },
      { head: 'role', value: ({ role }) => role },
      { head: 'since', value: ({ created_at }) => time(created_at) },
    ],
    { empty: 'There are no members.' },
  )
}

async function listIdentities(id: string, options: GlobalOptions): Promise<void> {
  const { items } = await connect(options).tunery.members.identities.list(id)
  showList(
    options,
    items,
    [
      { head: 'id', value: (identity) => identity.id },
      { head: 'email', value: ({ email }) => email ?? '', flexible: true },
      { head: 'provider', value: ({ issuer }) => issuer },
      { head: 'connected', value: ({ created_at }) => time(created_at) },
    ],
    { empty: 'Nobody signs in as this member by the provider.' },
  )
}

async function removeIdentity(id: string, identity: string, options: GlobalOptions): Promise<void> {
  const removed = await connect(options).tunery.members.identities.remove(id, identity)
  show(options, removed, `${identity} is removed.`)
}
