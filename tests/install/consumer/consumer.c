/* A program that embeds libsheaf as installed: prints its version. */
#include <stdio.h>

#include <sheaf/sheaf.h>

int main(void)
{
    printf("sheaf %s\n", sheaf_version());
    return sheaf_status_text(SHEAF_FULL)[0] == '\0';
}
