import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function SignInPage() {
  return (
    <Page title="Sign in">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
