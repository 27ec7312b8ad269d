import { useMutation, useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { TuneryError } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError, formError } from '../../lib/errors.ts'
import { leastPassword, useSecretOfLink } from '../../lib/secret.ts'
import { acceptInvitation, type Invitation } from '../../lib/sign-in.ts'
import { Centered } from '../../ui/brand.tsx'
import { Button, TextLink } from '../../ui/button.tsx'
import { Loaded, Notice, SkeletonLines } from '../../ui/feedback.tsx'
import { Form } from '../../ui/field.tsx'
import { Facts } from '../../ui/layout.tsx'
import { NewPassword } from '../../ui/new-password.tsx'
import { Message } from '../../ui/values.tsx'

/** `/invitation#TOKEN`: shows what it is for, and begins the new member's first session. */
export default function InvitationPage() {
  const token = useSecretOfLink()
  const invitation = useQuery({
    queryKey: ['invitation', token],
    queryFn: () => tunery.signIn.lookAtInvitation({ token: token! }),
    enabled: token !== undefined,
    retry: false,
    gcTime: 0,
  })
  return (
    <Centered title="Invitation" footer={<TextLink to="/sign-in">I have an account: sign in</TextLink>}>
      {invitation.isError && invitation.error instanceof TuneryError ? (
        <Notice tone="bad" title="The invitation cannot be accepted">
          <Message text={invitation.error.message} />
        </Notice>
      ) : token === undefined ? (
        <Notice tone="warn" title="The link is not complete">
          Open the whole link that you were given, with all that stands behind the #.
        </Notice>
      ) : (
        <Loaded query={invitation} skeleton={<SkeletonLines lines={4} />}>
          {(invitation) => <Accept token={token} invitation={invitation} />}
        </Loaded>
      )}
    </Centered>
  )
}

function Accept({ token, invitation }: { token: string; invitation: Invitation }) {
  const navigate = useNavigate()
  const [password, setPassword] = useState('')
  const accept = useMutation({
    mutationFn: () => acceptInvitation(token, invitation.email ? password : undefined),
    onSuccess: ({ has_password, has_passkey }) =>
      navigate({ to: has_password || has_passkey ? '/' : '/welcome', replace: true }),
  })
  const problem = formError(accept.error, ['password'])
  return (
    <>
      <p>
        {invitation.invited_by ?? 'An admin'} invites you to <strong>{invitation.account.name}</strong>.
      </p>
      <Facts
        facts={[
          ['Name', invitation.name],
          ['Email', invitation.email ?? 'none yet'],
          ['Role', invitation.role],
        ]}
      />
      <Form onSubmit={() => accept.mutate()}>
        {invitation.email && (
          <>
            {/* For password managers: the name that the password belongs to. */}
            <input type="hidden" name="email" autoComplete="username" value={invitation.email} />
            <NewPassword value={password} onChange={setPassword} error={fieldError(accept.error, 'password')} />
          </>
        )}
        {problem && (
          <Notice tone="bad">
            <Message text={problem} />
          </Notice>
        )}
        <Button
          type="submit"
          variant="primary"
          busy={accept.isPending}
          disabled={invitation.email !== null && password.length < leastPassword}
        >
          Join
        </Button>
      </Form>
    </>
  )
}
